"""Splitting a text into segments, which are added tokens and the plain text between them, and joining their ids."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from shared.bpe.encoding.added_tokens import AddedTokenMatcher
from shared.bpe.encoding.normalization import nfc, nfc_with_origins
from shared.bpe.encoding.template import Ids
from shared.bpe.errors import TokenizerError
from shared.bpe.piece_spelling import SPACE_MARK
from shared.bpe.vocabulary import AddedToken, Vocabulary, encode_utf8
from shared.system.errors import short_repr

AllowedSpecial = Collection[str] | Literal["all"]
Layout = list[int | None]
"""The segments of a text in order: the id of an added token, or None for plain text."""

_PLAIN: Layout = [None]

Origins = npt.NDArray[np.int64]
_NO_ORIGINS: Origins = np.empty((0, 2), np.int64)

# NFC makes at least two bytes of three characters, as of U+03B9 U+0308 U+0301; a test looks at all of Unicode.
_NFC_CHARACTERS, _NFC_BYTES = 3, 2


class Segment(NamedTuple):
    """A segment of a text as it is encoded: normalized, and with a space before it if the vocabulary adds one.

    Attributes:
        text: Its characters; those that an added token matched.
        token: The added token, None for plain text.
        origins: [characters, 2], the start and end of the characters of the whole text that each came from; empty
            unless requested.
    """

    text: str
    token: AddedToken | None
    origins: Origins


@dataclass(frozen=True)
class Matchers:
    """Find the added tokens that are recognized: `verbatim` in the text as it is, `normalized` in the normalized one.

    Without a normalizer, the first finds all.
    """

    verbatim: AddedTokenMatcher
    normalized: AddedTokenMatcher


class Segmenter:
    """Splits texts into segments, for one vocabulary.

    Attributes:
        special_tokens: Ids of the special tokens by content.
        keeps_text: Whether the bytes that are encoded are those of the text, and every byte has a token.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._added = vocabulary.added
        self._nfc = vocabulary.nfc
        self._has_pieces = bool(vocabulary.byte_tokens)
        self._normalizes = vocabulary.normalizes
        self._prefix_space, self._prepended_space = vocabulary.prefix_space, vocabulary.prepended_space
        self._only_first = vocabulary.only_first
        missing = vocabulary.missing_bytes
        self._missing = re.compile(b"[" + re.escape(missing) + b"]") if missing else None
        adds_space = self._prefix_space or self._prepended_space
        self.keeps_text = not (self._nfc or self._has_pieces or adds_space or missing)
        self.special_tokens: Mapping[str, int] = MappingProxyType({t.content: t.id for t in self._added if t.special})
        self._matchers = lru_cache(maxsize=64)(self._build_matchers)

    def matchers(self, allowed_special: AllowedSpecial) -> Matchers:
        """Matchers for the allowed special tokens and for the added tokens that are not special.

        Raises:
            TokenizerError: `allowed_special` names something that is not a special token.
        """
        if allowed_special == "all":
            return self._matchers(frozenset(self.special_tokens))
        if isinstance(allowed_special, str):
            raise TokenizerError(f'allowed_special must be "all" or a list of special tokens, not {allowed_special!r}')
        for name in allowed_special:
            if name not in self.special_tokens:
                known = ", ".join(map(repr, islice(self.special_tokens, 20))) or "none"
                reason = f"which is not a special token; known are {known}"
                raise TokenizerError(f"allowed_special names {short_repr(name)}, {reason}")
        return self._matchers(frozenset(allowed_special))

    def segments(
        self,
        text: str,
        matchers: Matchers,
        *,
        with_origins: bool,
        continues: bool = False,
        separator: str | None = None,
    ) -> Iterator[Segment]:
        """The segments of a text in order; no space is put before it if it continues another.

        What follows a separator is a text of its own.

        Raises:
            TokenizerError: A character has a byte without a token.
        """
        restart = None if separator is None else self.special_tokens[separator]
        is_first = True
        for start, verbatim, token in matchers.verbatim.split(text):
            origins = _NO_ORIGINS
            if with_origins:
                origins = np.arange(start, start + len(verbatim))[:, None] + np.arange(2)
            if token is not None:
                yield Segment(verbatim, token, origins)
                is_first = token.id == restart
                continue
            normalized = self._normalized(verbatim)
            if with_origins and self._nfc and normalized != verbatim:
                origins = np.array(nfc_with_origins(verbatim)[1], np.int64) + start
            begins = start > 0 or not continues
            if self._prepended_space and begins:
                normalized, origins = f" {normalized}", np.concatenate((origins[:1], origins))
            for first, part, added in matchers.normalized.split(normalized):
                origins_of_part = origins[first : first + len(part)]
                if added is not None:
                    yield Segment(part, added, origins_of_part)
                    is_first = added.id == restart
                    continue
                lacks_space = begins and self._lacks_space(part, is_first=is_first)
                is_first = False
                plain = f" {part}" if lacks_space else part
                self._check_bytes(plain)
                if lacks_space:
                    origins_of_part = np.concatenate((origins_of_part[:1], origins_of_part))
                yield Segment(plain, None, origins_of_part)

    def split_marked(self, text: str, mark: str, previous: str | AddedToken | None) -> Iterator[str | AddedToken]:
        """The segments of a text, as `Tokenizer.split_marked` describes them."""
        matchers = self.matchers("all")
        for start, verbatim, token in matchers.verbatim.split(text):
            if token is not None:
                yield token
                continue
            begins = start > 0 or not isinstance(previous, str)
            is_first = start == 0 and previous is None
            space = " " if self._prepended_space and begins else ""
            for first, part, added in matchers.normalized.split(space + self._normalized(verbatim)):
                if added is not None:
                    yield added
                    continue
                plain = self._normalized(part.replace(mark, ""))
                if begins and self._lacks_space(plain, is_first=is_first and first == 0):
                    plain = f" {plain}"
                self._check_bytes(plain)
                yield plain

    def split_plain(
        self, text: str, matchers: Matchers, *, continues: bool = False, separator: str | None = None
    ) -> tuple[list[str], Layout]:
        """The plain segments of a text, and the layout of all its segments; see `segments`.

        Raises:
            TokenizerError: A text that is split holds a lone surrogate, or a character with a byte without a token.
        """
        holds_added = matchers.normalized or matchers.verbatim.may_occur_in(text)
        if self.keeps_text and not holds_added:
            return [text], _PLAIN
        encode_utf8(text)  # raises for a lone surrogate
        if text and not holds_added:  # as below, in a fraction of the time
            normalized = self._normalized(text)
            adds_space = self._prepended_space or self._lacks_space(normalized, is_first=True)
            whole = f" {normalized}" if adds_space and not continues else normalized
            self._check_bytes(whole)
            return [whole], _PLAIN
        plain: list[str] = []
        layout: Layout = []
        segments = self.segments(text, matchers, with_origins=False, continues=continues, separator=separator)
        for segment in segments:
            layout.append(None if segment.token is None else segment.token.id)
            if segment.token is None:
                plain.append(segment.text)
        return plain, layout

    def split_plain_of_each(self, texts: Iterable[str], matchers: Matchers, layouts: list[Layout]) -> Iterator[str]:
        """The plain segments of all texts; the layout of each text is appended to `layouts`."""
        for index, text in enumerate(texts):
            try:
                plain, layout = self.split_plain(text, matchers)
            except TokenizerError as error:
                raise TokenizerError(f"text {index}: {error}") from None
            layouts.append(layout)
            yield from plain

    def min_bytes(self, text: str, matchers: Matchers) -> int:
        """The least number of bytes that are encoded of a text, without looking for tokens in it."""
        kept = min(matchers.verbatim.count_kept(text), matchers.normalized.count_kept(text))
        return kept * _NFC_BYTES // _NFC_CHARACTERS if self._nfc else kept

    def _build_matchers(self, allowed: frozenset[str]) -> Matchers:
        recognized = [t for t in self._added if not t.special or t.content in allowed]
        if not self._normalizes:
            return Matchers(AddedTokenMatcher(recognized), AddedTokenMatcher([]))
        space = " " if self._prepended_space else ""
        normalized = (replace(t, content=space + self._normalized(t.content)) for t in recognized if t.normalized)
        return Matchers(AddedTokenMatcher(t for t in recognized if not t.normalized), AddedTokenMatcher(normalized))

    def _normalized(self, text: str) -> str:
        text = nfc(text) if self._nfc else text
        return text.replace(SPACE_MARK, " ") if self._has_pieces else text

    def _lacks_space(self, text: str, *, is_first: bool) -> bool:
        """Whether a space is put before plain text that begins with none."""
        return self._prefix_space and (is_first or not self._only_first) and not text.startswith(" ")

    def _check_bytes(self, text: str) -> None:
        if self._missing is not None and (found := self._missing.search(text.encode())):
            byte = found.group()[0]
            character = next(character for character in text if byte in character.encode())
            raise TokenizerError(
                f"the text holds {character!r}, but the vocabulary has no token for its byte 0x{byte:02x}; remove the "
                "character, or use a tokenizer with all 256 bytes"
            )


def join_segments(layout: Layout, encoded: Iterator[Ids]) -> Ids:
    """The ids of a text, those of its plain segments taken from an iterator."""
    if layout == _PLAIN:
        return next(encoded)
    parts = [next(encoded) if token_id is None else np.array([token_id], np.uint32) for token_id in layout]
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)
