"""Templates: parsing, and expansion to text.

A template is plain English with two kinds of marks:

- `(sunny|windy)` is a choice. An option can be empty, and can contain marks itself.
- `{role.feature}` is a slot: a feature of the entity in that role, as in `{friend.his}` or `{toy.a}`. `{toy}` is short
  for `{toy.name}`, and `{he}` for `{hero.he}`. A capital in the mark, as in `{He}` or `{toy.A}`, capitalizes the text.

`{phrase}` inserts another template by name, before anything else is parsed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Entity: TypeAlias = Mapping[str, str]
"""Who or what has a role: the words for each feature, of which there is at least "name"."""

PRONOUNS = {
    "he": {"he": "he", "him": "him", "his": "his", "himself": "himself"},
    "she": {"he": "she", "him": "her", "his": "her", "himself": "herself"},
}

_PHRASE = re.compile(r"\{(\w+)\}")
_PART = re.compile(r"[(|)]|\{[\w.]+\}|[^(|){}]+")
_MAX_PHRASE_DEPTH = 10


class TemplateError(ValueError):
    """A template with a syntax error; the message quotes it."""


class StableRandom:
    """A seeded random generator with the same choices on every Python version.

    Python guarantees that for `Random.random`, not for `choice` and `shuffle`.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random  # noqa: S311 - not for cryptography

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options, all equally likely."""
        return options[int(self._random() * len(options))]


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for a feature of the entity in a role."""

    role: str
    feature: str
    capital: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """Stands for one of several templates."""

    options: tuple[Template, ...]


Template: TypeAlias = "tuple[str | Slot | Choice, ...]"


def parse(text: str, phrases: Mapping[str, str], roles: Collection[str]) -> Template:
    """Parse a template.

    Args:
        text: The template.
        phrases: Templates that `text` and other phrases can insert by name.
        roles: The roles that slots can name.

    Raises:
        TemplateError: a mark is not closed, a slot names neither a phrase nor a role, or a phrase inserts itself.
    """
    for _ in range(_MAX_PHRASE_DEPTH):
        text = _PHRASE.sub(lambda mark: phrases.get(mark[1], mark[0]), text)
    parts = _PART.findall(text)
    if "".join(parts) != text:
        raise TemplateError(f"unmatched brace in {text!r}")
    rest = [*parts, ")"][::-1]
    options = _parse_options(rest, roles)
    if rest or len(options) != 1:
        raise TemplateError(f"unmatched ')', or '|' outside parentheses, in {text!r}")
    return options[0]


def _parse_options(rest: list[str], roles: Collection[str]) -> tuple[Template, ...]:
    """Take parts from the end of `rest` up to the parenthesis that closes this choice."""
    options: list[list[str | Slot | Choice]] = [[]]
    while rest:
        part = rest.pop()
        if part == ")":
            return tuple(map(tuple, options))
        if part == "|":
            options.append([])
        elif part == "(":
            options[-1].append(Choice(_parse_options(rest, roles)))
        elif part[0] == "{":
            options[-1].append(_parse_slot(part[1:-1], roles))
        else:
            options[-1].append(part)
    raise TemplateError("unmatched '('")


def _parse_slot(mark: str, roles: Collection[str]) -> Slot:
    role, _, feature = mark.partition(".")
    capital = not mark.islower()
    role, feature = role.lower(), feature.lower()
    if role in PRONOUNS["he"]:
        role, feature = "hero", role
    if role not in roles:
        raise TemplateError(f"{{{mark}}} names neither a phrase nor a role; the roles are {', '.join(roles)}")
    return Slot(role, feature or "name", capital)


def expand(template: Template, cast: Mapping[str, Entity], rng: StableRandom) -> str:
    """Return a template's text with these entities, and with a random option for each choice."""
    return "".join(_expand(template, cast, rng))


def _expand(template: Template, cast: Mapping[str, Entity], rng: StableRandom) -> Iterator[str]:
    for part in template:
        match part:
            case str():
                yield part
            case Slot(role, feature, capital):
                words = cast[role][feature]
                yield words[0].upper() + words[1:] if capital else words
            case Choice(options):
                yield from _expand(rng.choice(options), cast, rng)
