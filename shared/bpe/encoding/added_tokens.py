"""Finding added tokens in a text as Hugging Face's tokenizers does.

Tokens matched in the text as it is come first; those marked `normalized` are searched for in the text between them. Of
either kind, the leftmost match wins, and of those that begin at one place the longest.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from shared.bpe.vocabulary import AddedToken

# Unicode's White_Space; `str.strip` would take U+001C to U+001F too.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
_RUN = re.compile(f"[{_WHITE_SPACE}]*")

# Characters searched per call of `re`, which holds the GIL throughout: for 2 ms at most with Qwen's tokens.
_BLOCK = 1 << 16
# Depth of the prefix tree in the regular expression: `re` limits nesting.
_LEVELS = 4


@dataclass(frozen=True)
class Match:
    """An added token at characters `start` to `end` of a text, the white space that it strips included."""

    token: AddedToken
    start: int
    end: int


class AddedTokenMatcher:
    """Finds the given added tokens; their order does not matter."""

    def __init__(self, tokens: Iterable[AddedToken]):
        by_content = {token.content: token for token in tokens}
        kinds = ([t for t in by_content.values() if t.normalized == normalized] for normalized in (False, True))
        self._passes = [_Pass(kind) for kind in kinds if kind]
        self._strips = any(token.lstrip or token.rstrip for token in by_content.values())
        self._contents = sorted(by_content)
        self._longest = max(map(len, by_content), default=0)
        self._first_characters = {content[0] for content in by_content}

    def __bool__(self) -> bool:
        """Whether there is anything to find."""
        return bool(self._passes)

    def may_occur_in(self, text: str) -> bool:
        """Whether a text holds the first character of one of the tokens: a quick test, mostly false."""
        return any(character in text for character in self._first_characters)

    def count_kept(self, text: str) -> int:
        """The least number of characters that are kept: one of the tokens may strip any amount of white space."""
        if not self._strips:
            return len(text)
        # Most of these occur in no text, and `in` is faster than `count`.
        return len(text) - sum(text.count(space) for space in _WHITE_SPACE if space in text)

    def find(self, text: str) -> Iterator[Match]:
        """Matches from left to right.

        They overlap only in white space, where one token strips what another begins or ends with.
        """
        if self.may_occur_in(text):
            yield from _find(text, 0, len(text), self._passes)

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
        """The first place where text still to come may complete an added token; `len(text)` if there is none."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            ending = text[start:]
            # The next content in lexicographic order; contents that begin with `ending` follow it immediately.
            following = bisect_right(self._contents, ending)
            if following < len(self._contents) and self._contents[following].startswith(ending):
                return start
        return len(text)


class _Pass:
    """The added tokens of one kind, searched for in one pass."""

    def __init__(self, tokens: Sequence[AddedToken]):
        self._tokens = {token.content: token for token in tokens}
        self._longest = max(map(len, self._tokens))
        self._pattern = re.compile(_any_of(self._tokens, _LEVELS))

    def find(self, text: str, start: int, end: int) -> Iterator[Match]:
        for found in self._matches(text, start, end):
            token = self._tokens[found.group()]
            first, last = found.span()
            if token.lstrip and first > start:
                first = start + len(text[start:first].rstrip(_WHITE_SPACE))
            if token.rstrip and (space := _RUN.match(text, last, end)):
                last = space.end()
            yield Match(token, first, last)
            start = last

    def _matches(self, text: str, start: int, end: int) -> Iterator[re.Match[str]]:
        while start < end:
            block_end = start + max(_BLOCK, self._longest)
            for found in self._pattern.finditer(text, start, min(end, block_end + self._longest - 1)):
                if found.start() >= block_end:  # a longer one may begin there
                    break
                yield found
                start = found.end()
            start = max(start, block_end)


def _any_of(contents: Iterable[str], levels: int) -> str:
    """A regular expression that matches the longest of the contents that begin at one place."""
    ordered = sorted(contents, reverse=True)  # a content comes before its own prefixes
    if levels == 0 or len(ordered) == 1:
        return "|".join(map(re.escape, ordered))
    groups = groupby(ordered, key=lambda content: content[:1])
    return "|".join(f"{re.escape(first)}(?:{_any_of([c[1:] for c in group], levels - 1)})" for first, group in groups)


def _find(text: str, start: int, end: int, passes: Sequence[_Pass]) -> Iterator[Match]:
    if not passes:
        return
    for match in passes[0].find(text, start, end):
        yield from _find(text, start, match.start, passes[1:])
        yield match
        start = match.end
    yield from _find(text, start, end, passes[1:])
