"""Tokens with their offsets in the text."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from shared.bpe.encoding.segments import Segment
from shared.bpe.encoding.template import Ids, Template


class TokenSpan(NamedTuple):  # takes a third of the time of a dataclass, which is most of what offsets cost
    """One token of a text.

    Attributes:
        id: The token's id.
        bytes: The bytes that it stands for.
        start: The first character of the text that it covers, wholly or in part.
        end: The character after the last one that it covers.
        special: Whether it is an added token.
    """

    id: int
    bytes: bytes
    start: int
    end: int
    special: bool


class TokenColumns(NamedTuple):
    """The tokens of a text, an attribute of `TokenSpan` in each list: a million take a third of the time of spans."""

    ids: list[int]
    bytes: list[bytes]
    starts: list[int]
    ends: list[int]
    special: list[bool]

    def spans(self) -> list[TokenSpan]:
        """The same, token by token."""
        return [*map(TokenSpan, *self)]


def columns_of(segments: Sequence[Segment], encoded: Iterator[Ids], tokens: Mapping[int, bytes]) -> TokenColumns:
    """The tokens of a text with their offsets.

    Args:
        segments: The segments of the text, with their origins.
        encoded: The ids of each plain segment.
        tokens: Bytes by id.
    """
    columns = TokenColumns([], [], [], [], [])
    for segment in segments:
        if segment.token is None:
            _add_plain(columns, segment, next(encoded), tokens)
        else:
            start, end = segment.origins[0, 0].item(), segment.origins[-1, 1].item()
            _add(columns, [segment.token.id], [tokens[segment.token.id]], [start], [end], special=True)
    return columns


def with_template(columns: TokenColumns, length: int, template: Template, tokens: Mapping[int, bytes]) -> TokenColumns:
    """The tokens of a text of `length` characters with those of the template around them, which cover no character."""
    before, after = template.missing(columns.ids)
    first, last = [0] * len(before), [length] * len(after)
    return TokenColumns(
        ids=[*before, *columns.ids, *after],
        bytes=[*map(tokens.__getitem__, before), *columns.bytes, *map(tokens.__getitem__, after)],
        starts=[*first, *columns.starts, *last],
        ends=[*first, *columns.ends, *last],
        special=[*repeat(True, len(before)), *columns.special, *repeat(True, len(after))],
    )


def _add(
    columns: TokenColumns,
    ids: Sequence[int],
    spellings: list[bytes],
    starts: list[int],
    ends: list[int],
    *,
    special: bool,
) -> None:
    columns.ids.extend(ids)
    columns.bytes.extend(spellings)
    columns.starts.extend(starts)
    columns.ends.extend(ends)
    columns.special.extend(repeat(special, len(ids)))


def _add_plain(columns: TokenColumns, segment: Segment, ids: Ids, tokens: Mapping[int, bytes]) -> None:
    data = np.frombuffer(segment.text.encode(), np.uint8)
    owners = np.cumsum(data & 0xC0 != 0x80) - 1  # for each byte, the character that it belongs to
    ids_of_tokens = ids.tolist()
    spellings = [tokens[token_id] for token_id in ids_of_tokens]
    lengths = np.fromiter(map(len, spellings), np.int64, len(spellings))
    ends = np.cumsum(lengths)
    firsts = segment.origins[owners[ends - lengths], 0].tolist()
    lasts = segment.origins[owners[ends - 1], 1].tolist()
    _add(columns, ids_of_tokens, spellings, firsts, lasts, special=False)
