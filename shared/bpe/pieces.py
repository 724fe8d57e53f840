"""Tokens with their places in the text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """One token of a text.

    Attributes:
        id: The token's id.
        bytes: The bytes it stands for.
        start: The first character of the text that it covers, wholly or in part.
        end: The character after the last one that it covers.
        special: Whether it is an added token.
    """

    id: int
    bytes: bytes
    start: int
    end: int
    special: bool


def place_tokens(
    parts: Iterable[tuple[str, list[int]]], tokens: Mapping[int, bytes], places: Sequence[tuple[int, int]]
) -> Iterator[Piece]:
    """Give the tokens of plain text their places.

    Args:
        parts: The text in order, each part with its ids.
        tokens: Bytes by id.
        places: For each character the (start, end) of those that it came from.
    """
    first = 0
    for part, ids in parts:
        # For each byte of the part, the character that it belongs to.
        owners = [place for place, character in enumerate(part, start=first) for _ in character.encode()]
        done = 0
        for token_id in ids:
            token = tokens[token_id]
            start, end = places[owners[done]][0], places[owners[done + len(token) - 1]][1]
            yield Piece(token_id, token, start, end, special=False)
            done += len(token)
        first += len(part)
