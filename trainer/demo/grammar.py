"""The machine that turns templates into text.

A template is plain English with two marks:

- ``(sunny|windy)`` is a choice; an option can be empty, and can hold marks itself.
- ``{role.feature}`` is a slot: a feature of whoever plays the role, as in ``{friend.his}`` or ``{toy.a}``. A bare
  ``{toy}`` is its name, a bare pronoun such as ``{he}`` is the hero's, and a capital, as in ``{He}`` or ``{toy.A}``,
  gives one to the text.

Besides, ``{phrase}`` takes in another template by name, before anything else is read.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")

# What a text can ask of a member of the cast: feature to words. Each has at least a "name".
Entity: TypeAlias = Mapping[str, str]

PRONOUNS = {
    "he": {"he": "he", "him": "him", "his": "his", "himself": "himself"},
    "she": {"he": "she", "him": "her", "his": "her", "himself": "herself"},
}

_PHRASE = re.compile(r"\{(\w+)\}")
_PART = re.compile(r"[(|)]|\{[\w.]+\}|[^(|){}]+")
_DEEPEST_PHRASE = 10


class TemplateError(ValueError):
    """A template that cannot be read; the message quotes the fault."""


class Draw:
    """A seeded source of choices that are the same on every Python version.

    Only ``Random.random`` is promised to stay as it is across versions; ``choice`` and ``shuffle`` are not.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random  # noqa: S311  stories are no secrets

    def one(self, options: Sequence[T]) -> T:
        """Return one of the options, each as likely as the others."""
        return options[int(self._random() * len(options))]


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a feature of a member of the cast."""

    role: str
    feature: str
    capital: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """A place for one of several templates."""

    options: tuple[Template, ...]


Template: TypeAlias = "tuple[str | Slot | Choice, ...]"


def parse(text: str, phrases: Mapping[str, str], roles: Collection[str]) -> Template:
    """Read a template.

    Args:
        text: The template.
        phrases: Templates that ``text``, and they themselves, can take in by name.
        roles: What slots can speak of.

    Raises:
        TemplateError: A mark is not closed, a slot names neither a phrase nor a role, or a phrase takes in itself.
    """
    for _ in range(_DEEPEST_PHRASE):
        text = _PHRASE.sub(lambda mark: phrases.get(mark[1], mark[0]), text)
    parts = _PART.findall(text)
    if "".join(parts) != text:
        raise TemplateError(f"stray brace in {text!r}")
    unread = [*parts, ")"][::-1]
    options = _parse_options(unread, roles)
    if unread or len(options) != 1:
        raise TemplateError(f"a ')' without its '(', or a '|' outside of both, in {text!r}")
    return options[0]


def _parse_options(unread: list[str], roles: Collection[str]) -> tuple[Template, ...]:
    """Take parts from the end of ``unread`` up to the parenthesis that closes this choice."""
    options: list[list[str | Slot | Choice]] = [[]]
    while unread:
        part = unread.pop()
        if part == ")":
            return tuple(map(tuple, options))
        if part == "|":
            options.append([])
        elif part == "(":
            options[-1].append(Choice(_parse_options(unread, roles)))
        elif part[0] == "{":
            options[-1].append(_parse_slot(part[1:-1], roles))
        else:
            options[-1].append(part)
    raise TemplateError("a '(' without its ')'")


def _parse_slot(mark: str, roles: Collection[str]) -> Slot:
    role, _, feature = mark.partition(".")
    capital = not mark.islower()
    role, feature = role.lower(), feature.lower()
    if role in PRONOUNS["he"]:
        role, feature = "hero", role
    if role not in roles:
        raise TemplateError(f"{{{mark}}} names neither a phrase nor a role; the roles are {', '.join(roles)}")
    return Slot(role, feature or "name", capital)


def expand(template: Template, cast: Mapping[str, Entity], draw: Draw) -> str:
    """Return the text that a template gives with this cast, drawing one option of every choice met."""
    return "".join(_expand(template, cast, draw))


def _expand(template: Template, cast: Mapping[str, Entity], draw: Draw) -> Iterator[str]:
    for part in template:
        match part:
            case str():
                yield part
            case Slot(role, feature, capital):
                words = cast[role][feature]
                yield words[0].upper() + words[1:] if capital else words
            case Choice(options):
                yield from _expand(draw.one(options), cast, draw)
