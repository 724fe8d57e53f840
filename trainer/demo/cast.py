"""The entities of a story. Agreement (he or she, a or an, which word is the noun) is decided here, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from trainer.demo.grammar import PRONOUNS, Entity, StableRandom

EntityFactory: TypeAlias = Callable[[StableRandom], Entity]
"""Draws an entity for a role."""


def entity_factory(kind: str | Sequence[str], words: Mapping[str, Any]) -> EntityFactory:
    """The factory for a role of a plot.

    Args:
        kind: "character", "elder", "helper", "place", or the nouns of a colored thing.
        words: The word lists of the data file.
    """
    if isinstance(kind, str):
        return partial(_KINDS[kind], words)
    return partial(_thing, words, kind)


def draw_cast(roles: Mapping[str, EntityFactory], rng: StableRandom) -> dict[str, Entity]:
    """Draw an entity for each role; no two share a name or a kind."""
    cast: dict[str, Entity] = {}
    used: set[str] = set()
    for role, new_entity in roles.items():
        entity = new_entity(rng)
        while used & {entity["name"], entity["kind"]}:
            entity = new_entity(rng)
        used |= {entity["name"], entity["kind"]}
        cast[role] = entity
    return cast


def _character(words: Mapping[str, Any], rng: StableRandom) -> Entity:
    """A child or a young animal with a name: `name`, `kind`, `a` ("a brave fox") and pronouns."""
    pronoun, child, names = rng.choice((("she", "girl", "girl_names"), ("he", "boy", "boy_names")))
    kind = rng.choice((child, rng.choice(words["animals"])))
    return {
        "name": rng.choice(words[names]),
        "kind": kind,
        "a": _with_article(f"{rng.choice(words['traits'])} {kind}"),
        **PRONOUNS[pronoun],
    }


def _elder(words: Mapping[str, Any], rng: StableRandom) -> Entity:
    """A grown-up of the hero's family, for "{his} {elder}"."""
    elder = rng.choice(words["elders"])
    return {"name": elder["noun"], "kind": elder["noun"], **PRONOUNS[elder["pronoun"]]}


def _helper(words: Mapping[str, Any], rng: StableRandom) -> Entity:
    """A passer-by without a name, for "{helper.a}" at first and "the {helper}" from then on."""
    helper = rng.choice(words["helpers"])
    noun = helper["noun"]
    return {"name": noun, "kind": noun, "a": _with_article(f"{helper['trait']} {noun}"), **PRONOUNS[helper["pronoun"]]}


def _place(words: Mapping[str, Any], rng: StableRandom) -> Entity:
    """A destination: `name` ("the park"), `in` ("in the park"), and a `spot` there ("under a bench")."""
    place = rng.choice(words["places"])
    name = place["name"]
    return {"name": name, "kind": name, "in": f"{place['in']} {name}", "spot": rng.choice(place["spots"])}


def _thing(words: Mapping[str, Any], nouns: Sequence[str], rng: StableRandom) -> Entity:
    """A colored thing: `a` ("a red ball") at first, `name` and `kind` ("ball") from then on, and its `color`."""
    color, noun = rng.choice(words["colors"]), rng.choice(nouns)
    return {"name": noun, "kind": noun, "a": _with_article(f"{color} {noun}"), "color": color}


def _with_article(words: str) -> str:
    """Put "a" or "an" before words, by their first letter: the word lists have no "hour" and no "unicorn"."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


_KINDS = {"character": _character, "elder": _elder, "helper": _helper, "place": _place}
