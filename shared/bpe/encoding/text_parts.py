"""Taking a text apart into added tokens and the plain text between them, and putting its ids together."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from shared.bpe.encoding.added_tokens import AddedTokenMatcher
from shared.bpe.encoding.normalization import nfc, nfc_with_origins
from shared.bpe.errors import TokenizerError
from shared.bpe.vocabulary import AddedToken, Vocabulary, encode_utf8
from shared.system.errors import shown

AllowedSpecial = Collection[str] | Literal["all"]
Ids = npt.NDArray[np.uint32]
Layout = list[int | None]
"""The parts of a text in order: the id of an added token, or None for plain text."""

_PLAIN: Layout = [None]


class Part(NamedTuple):
    """A part of a text as it is encoded: normalized, and with a space before it where the vocabulary wants one.

    Attributes:
        text: Its characters, for an added token those that it matched.
        token: The added token, None for plain text.
        places: For each character the (start, end) of those of the whole text that it came from; empty unless wanted.
    """

    text: str
    token: AddedToken | None
    places: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Matchers:
    """What finds the added tokens that count in a text: `verbatim` in it as it is, `normalized` in its NFC.

    Without a normalizer, the first finds all.
    """

    verbatim: AddedTokenMatcher
    normalized: AddedTokenMatcher


class TextCutter:
    """Takes texts apart as a vocabulary demands.

    Attributes:
        special_tokens: Its control tokens: content to id.
        keeps_text: Whether what is encoded are the bytes of the text, and all of them have tokens.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._added = vocabulary.added
        self._nfc = vocabulary.nfc
        self._prefix_space = vocabulary.prefix_space
        missing = vocabulary.missing_bytes
        self._missing = re.compile(b"[" + re.escape(missing) + b"]") if missing else None
        self.keeps_text = not (self._nfc or self._prefix_space or missing)
        self.special_tokens: Mapping[str, int] = MappingProxyType({t.content: t.id for t in self._added if t.special})
        self._matchers = lru_cache(maxsize=64)(self._build_matchers)

    def matchers(self, allowed_special: AllowedSpecial) -> Matchers:
        """What finds the allowed control tokens, and the added tokens that are none.

        Raises:
            TokenizerError: If `allowed_special` names no control token.
        """
        if allowed_special == "all":
            return self._matchers(frozenset(self.special_tokens))
        if isinstance(allowed_special, str):
            raise TokenizerError(f'allowed_special must be "all" or a list of special tokens, not {allowed_special!r}')
        for name in allowed_special:
            if name not in self.special_tokens:
                known = ", ".join(map(repr, islice(self.special_tokens, 20))) or "none"
                reason = f"which is no special token; known are {known}"
                raise TokenizerError(f"allowed_special names {shown(name)}, {reason}")
        return self._matchers(frozenset(allowed_special))

    def parts(self, text: str, matchers: Matchers, *, placed: bool) -> Iterator[Part]:
        """The parts of a text in order.

        Raises:
            TokenizerError: If a character has a byte without a token.
        """
        for start, verbatim, token in matchers.verbatim.split(text):
            places = [(place, place + 1) for place in range(start, start + len(verbatim))] if placed else []
            if token is not None:
                yield Part(verbatim, token, places)
                continue
            normalized = nfc(verbatim) if self._nfc else verbatim
            if placed and normalized != verbatim:
                places = [(start + first, start + last) for first, last in nfc_with_origins(verbatim)[1]]
            for first, part, added in matchers.normalized.split(normalized):
                places_of_part = places[first : first + len(part)]
                yield Part(part, added, places_of_part) if added else self._plain(part, places_of_part)

    def take_apart(self, text: str, matchers: Matchers) -> tuple[list[bytes], Layout]:
        """The parts of a text that are plain, as UTF-8; and its layout.

        Raises:
            TokenizerError: If the text holds a lone surrogate, or a character with a byte that has no token.
        """
        data = encode_utf8(text)
        if self.keeps_text and not matchers.verbatim.may_occur_in(text):
            return [data], _PLAIN
        plain: list[bytes] = []
        layout: Layout = []
        for part in self.parts(text, matchers, placed=False):
            layout.append(None if part.token is None else part.token.id)
            if part.token is None:
                plain.append(part.text.encode())
        return plain, layout

    def take_each_apart(self, texts: Iterable[str], matchers: Matchers, layouts: list[Layout]) -> Iterator[bytes]:
        """The parts of plain text of all texts, whose layouts are added to a list on the way."""
        for index, text in enumerate(texts):
            try:
                plain, layout = self.take_apart(text, matchers)
            except TokenizerError as error:
                raise TokenizerError(f"text {index}: {error}") from None
            layouts.append(layout)
            yield from plain

    def _build_matchers(self, allowed: frozenset[str]) -> Matchers:
        counting = [t for t in self._added if not t.special or t.content in allowed]
        if not self._nfc:
            return Matchers(AddedTokenMatcher(counting), AddedTokenMatcher([]))
        normalized = (replace(t, content=nfc(t.content)) for t in counting if t.normalized)
        return Matchers(AddedTokenMatcher(t for t in counting if not t.normalized), AddedTokenMatcher(normalized))

    def _plain(self, text: str, places: list[tuple[int, int]]) -> Part:
        if self._prefix_space and not text.startswith(" "):
            text, places = f" {text}", places[:1] + places
        if self._missing is not None and (found := self._missing.search(text.encode())):
            byte = found.group()[0]
            character = next(character for character in text if byte in character.encode())
            raise TokenizerError(
                f"the text holds {character!r}, but the vocabulary has no token for its byte 0x{byte:02x}; leave the "
                "character out, or use a tokenizer with all 256 bytes"
            )
        return Part(text, None, places)


def assemble(layout: Layout, encoded: Iterator[Ids]) -> Ids:
    """The ids of a text, with those of its plain parts taken from an iterator."""
    if layout == _PLAIN:
        return next(encoded)
    parts = [next(encoded) if token_id is None else np.array([token_id], np.uint32) for token_id in layout]
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)
