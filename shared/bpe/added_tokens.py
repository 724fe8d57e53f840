"""Finding added tokens in a text: leftmost first, and of those that begin at one place the longest."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from shared.bpe.vocabulary import AddedToken

# Unicode's White_Space; `str.strip` would take U+001C to U+001F too.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
_WHITE_RUN = re.compile(f"[{_WHITE_SPACE}]+")


@dataclass(frozen=True)
class Match:
    """An added token at characters `start` to `end` of a text, the white space that it strips included."""

    token: AddedToken
    start: int
    end: int


class AddedTokenMatcher:
    """Finds the given added tokens, in whatever order they are declared."""

    def __init__(self, tokens: Iterable[AddedToken]):
        self._tokens = {token.content: token for token in tokens}
        longest_first = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._first_characters = {content[0] for content in self._tokens}

    def may_occur_in(self, text: str) -> bool:
        """Whether a text holds what one of the tokens begins with: quick, and mostly false."""
        return any(character in text for character in self._first_characters)

    def find(self, text: str) -> Iterator[Match]:
        """Matches from left to right, never overlapping."""
        if self._pattern is None or not self.may_occur_in(text):
            return
        position = 0
        while found := self._pattern.search(text, position):
            token = self._tokens[found.group()]
            start, end = found.span()
            if token.lstrip:
                start = position + len(text[position:start].rstrip(_WHITE_SPACE))
            if token.rstrip:
                end = (_WHITE_RUN.match(text, end) or found).end()
            yield Match(token, start, end)
            position = end

    def split(self, text: str) -> Iterator[tuple[int, str, AddedToken | None]]:
        """The text in order as (start, part, added token), the token None for plain text; no part is empty."""
        position = 0
        for match in self.find(text):
            if match.start > position:
                yield position, text[position : match.start], None
            yield match.start, text[match.start : match.end], match.token
            position = match.end
        if position < len(text):
            yield position, text[position:], None

    def undecided_from(self, text: str) -> int:
        """Where an added token may begin that only text still to come decides; `len(text)` if nowhere."""
        for start in range(max(0, len(text) - self._longest_prefix), len(text)):
            if text[start:] in self._prefixes:
                return start
        return len(text)

    @cached_property
    def _prefixes(self) -> frozenset[str]:
        return frozenset(content[:end] for content in self._tokens for end in range(1, len(content)))

    @cached_property
    def _longest_prefix(self) -> int:
        return max(map(len, self._prefixes), default=0)
