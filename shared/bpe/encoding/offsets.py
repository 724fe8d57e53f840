"""Tokens with their places in the text."""

from array import array
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
    text: str, ids: Iterable[int], tokens: Mapping[int, bytes], places: Sequence[tuple[int, int]]
) -> Iterator[Piece]:
    """Give the tokens of plain text their places.

    Args:
        text: The text.
        ids: Its tokens.
        tokens: Bytes by id.
        places: For each character the (start, end) of those that it came from.
    """
    # For each byte of the text, the character that it belongs to.
    owners = array("q", (place for place, character in enumerate(text) for _ in character.encode()))
    done = 0
    for token_id in ids:
        token = tokens[token_id]
        start, end = places[owners[done]][0], places[owners[done + len(token) - 1]][1]
        yield Piece(token_id, token, start, end, special=False)
        done += len(token)
