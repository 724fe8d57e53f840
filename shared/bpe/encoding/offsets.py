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


def spans_of(segments: Sequence[Segment], encoded: Iterator[Ids], tokens: Mapping[int, bytes]) -> list[TokenSpan]:
    """The tokens of a text with their offsets.

    Args:
        segments: The segments of the text, with their origins.
        encoded: The ids of each plain segment.
        tokens: Bytes by id.
    """
    spans: list[TokenSpan] = []
    for segment in segments:
        if segment.token is None:
            spans += _spans_of_plain(segment, next(encoded), tokens)
        else:
            start, end = segment.origins[0, 0].item(), segment.origins[-1, 1].item()
            spans.append(TokenSpan(segment.token.id, tokens[segment.token.id], start, end, special=True))
    return spans


def with_template(
    spans: list[TokenSpan], length: int, template: Template, tokens: Mapping[int, bytes]
) -> list[TokenSpan]:
    """The spans of a text of `length` characters with those of the template around them, which cover no character."""
    before, after = template.missing([span.id for span in spans])
    return [
        *(TokenSpan(token_id, tokens[token_id], 0, 0, special=True) for token_id in before),
        *spans,
        *(TokenSpan(token_id, tokens[token_id], length, length, special=True) for token_id in after),
    ]


def _spans_of_plain(segment: Segment, ids: Ids, tokens: Mapping[int, bytes]) -> Iterator[TokenSpan]:
    data = np.frombuffer(segment.text.encode(), np.uint8)
    owners = np.cumsum(data & 0xC0 != 0x80) - 1  # for each byte, the character that it belongs to
    ids_of_tokens = ids.tolist()
    spellings = [tokens[token_id] for token_id in ids_of_tokens]
    lengths = np.fromiter(map(len, spellings), np.int64, len(spellings))
    ends = np.cumsum(lengths)
    firsts = segment.origins[owners[ends - lengths], 0].tolist()
    lasts = segment.origins[owners[ends - 1], 1].tolist()
    return map(TokenSpan, ids_of_tokens, spellings, firsts, lasts, repeat(False))
