"""Who and what a story can be about. Agreement (he or she, a or an, which word is the noun) is settled here, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from trainer.demo.grammar import PRONOUNS, Draw, Entity
from trainer.demo.words import ANIMALS, BOY_NAMES, COLOURS, ELDERS, GIRL_NAMES, HELPERS, PLACES, TRAITS

# Draws someone or something for a role.
Maker: TypeAlias = Callable[[Draw], Entity]


def cast_roles(roles: Mapping[str, Maker], draw: Draw) -> dict[str, Entity]:
    """Draw the cast of a story; no two of it share a name or a kind."""
    cast: dict[str, Entity] = {}
    taken: set[str] = set()
    for role, make in roles.items():
        entity = make(draw)
        while taken & {entity["name"], entity["kind"]}:
            entity = make(draw)
        taken |= {entity["name"], entity["kind"]}
        cast[role] = entity
    return cast


def character(draw: Draw) -> Entity:
    """A child or a young animal with a name: ``name``, ``kind``, ``a`` ("a brave fox") and pronouns."""
    pronoun, child, names = draw.one((("she", "girl", GIRL_NAMES), ("he", "boy", BOY_NAMES)))
    kind = draw.one((child, draw.one(ANIMALS)))
    return {"name": draw.one(names), "kind": kind, "a": with_article(f"{draw.one(TRAITS)} {kind}"), **PRONOUNS[pronoun]}


def elder(draw: Draw) -> Entity:
    """A grown-up of the hero's family, for "{his} {elder}"."""
    noun, pronoun = draw.one(ELDERS)
    return {"name": noun, "kind": noun, **PRONOUNS[pronoun]}


def helper(draw: Draw) -> Entity:
    """A passer-by without a name, for "{helper.a}" at first and "the {helper}" from then on."""
    trait, noun, pronoun = draw.one(HELPERS)
    return {"name": noun, "kind": noun, "a": with_article(f"{trait} {noun}"), **PRONOUNS[pronoun]}


def place(draw: Draw) -> Entity:
    """Somewhere to go: ``name`` ("the park"), ``in`` ("in the park"), and a ``spot`` there ("under a bench")."""
    name, preposition, spots = draw.one(PLACES)
    return {"name": name, "kind": name, "in": f"{preposition} {name}", "spot": draw.one(spots)}


def thing(*nouns: str) -> Maker:
    """A maker of coloured things: ``a`` ("a red ball") at first, ``name`` and ``kind`` ("ball") from then on."""

    def make(draw: Draw) -> Entity:
        colour, noun = draw.one(COLOURS), draw.one(nouns)
        return {"name": noun, "kind": noun, "a": with_article(f"{colour} {noun}")}

    return make


def with_article(words: str) -> str:
    """Put "a" or "an" before words, by their first letter: the word lists hold no "hour" and no "unicorn"."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
