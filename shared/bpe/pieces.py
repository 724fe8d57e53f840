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
    parts: Iterable[tuple[str, list[int]]],
    tokens: Mapping[int, bytes],
    *,
    offset: int,
    origins: Sequence[tuple[int, int]] | None = None,
) -> Iterator[Piece]:
    """Give the tokens of plain text their places.

    Args:
        parts: The text in order, each part with its ids.
        tokens: Bytes by id.
        offset: The place of the first character.
        origins: For each character, where it came from, counted from the offset, if that is not its own place.
    """
    first = 0
    for part, ids in parts:
        # For each byte of the part, the character that it belongs to.
        owners = [place for place, character in enumerate(part, start=first) for _ in character.encode()]
        done = 0
        for token_id in ids:
            token = tokens[token_id]
            start, last = owners[done], owners[done + len(token) - 1]
            start, end = (start, last + 1) if origins is None else (origins[start][0], origins[last][1])
            yield Piece(token_id, token, offset + start, offset + end, special=False)
            done += len(token)
        first += len(part)
