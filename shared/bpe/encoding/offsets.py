"""Tokens with their offsets in the text."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shared.bpe.encoding.segments import Segment
from shared.bpe.encoding.template import Ids, Template


@dataclass(frozen=True)
class TokenSpan:
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
            spans += _spans_of_plain(segment, next(encoded).tolist(), tokens)
        else:
            start, end = segment.origins[0][0], segment.origins[-1][1]
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


def _spans_of_plain(segment: Segment, ids: Sequence[int], tokens: Mapping[int, bytes]) -> Iterator[TokenSpan]:
    # For each byte of the segment, the character that it belongs to.
    owners = array("q", (index for index, character in enumerate(segment.text) for _ in character.encode()))
    done = 0
    for token_id in ids:
        token = tokens[token_id]
        start, end = segment.origins[owners[done]][0], segment.origins[owners[done + len(token) - 1]][1]
        yield TokenSpan(token_id, token, start, end, special=False)
        done += len(token)
