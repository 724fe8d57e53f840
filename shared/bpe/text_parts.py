"""Taking a text apart into added tokens and the plain text between them, and putting its ids together."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from shared.bpe.added_tokens import AddedTokenMatcher
from shared.bpe.errors import TokenizerError
from shared.bpe.normalization import nfc
from shared.bpe.vocabulary import Vocabulary, encode_utf8

AllowedSpecial = Collection[str] | Literal["all"]
Ids = npt.NDArray[np.uint32]
Layout = list[int | None]
"""The parts of a text in order: the id of an added token, or None for plain text."""

_PLAIN: Layout = [None]


class TextCutter:
    """Takes texts apart as a vocabulary demands.

    Attributes:
        special_tokens: Its control tokens: content to id.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._added = vocabulary.added
        self._nfc = vocabulary.nfc
        self.special_tokens: Mapping[str, int] = MappingProxyType({t.content: t.id for t in self._added if t.special})
        self._matcher = lru_cache(maxsize=64)(self._build_matcher)

    def matcher(self, allowed_special: AllowedSpecial) -> AddedTokenMatcher:
        """What finds the allowed control tokens, and the added tokens that are none.

        Raises:
            TokenizerError: If `allowed_special` names no control token.
        """
        if allowed_special == "all":
            return self._matcher(frozenset(self.special_tokens))
        if isinstance(allowed_special, str):
            raise TokenizerError(f'allowed_special must be "all" or a list of special tokens, not {allowed_special!r}')
        for name in allowed_special:
            if name not in self.special_tokens:
                known = ", ".join(map(repr, islice(self.special_tokens, 20))) or "none"
                raise TokenizerError(f"allowed_special names {name!r}, which is no special token; known are {known}")
        return self._matcher(frozenset(allowed_special))

    def take_apart(self, text: str, matcher: AddedTokenMatcher) -> tuple[list[bytes], Layout]:
        """The parts of a text that are plain, normalized, as UTF-8; and its layout."""
        data = encode_utf8(text)
        if not self._nfc and not matcher.may_occur_in(text):
            return [data], _PLAIN
        plain: list[bytes] = []
        layout: Layout = []
        for _, part, token in matcher.split(text):
            layout.append(None if token is None else token.id)
            if token is None:
                plain.append((nfc(part) if self._nfc else part).encode())
        return plain, layout

    def take_each_apart(
        self, texts: Iterable[str], matcher: AddedTokenMatcher, layouts: list[Layout]
    ) -> Iterator[bytes]:
        """The parts of plain text of all texts, whose layouts are added to a list on the way."""
        for index, text in enumerate(texts):
            try:
                plain, layout = self.take_apart(text, matcher)
            except TokenizerError as error:
                raise TokenizerError(f"text {index}: {error}") from None
            layouts.append(layout)
            yield from plain

    def _build_matcher(self, allowed: frozenset[str]) -> AddedTokenMatcher:
        return AddedTokenMatcher(t for t in self._added if not t.special or t.content in allowed)


def assemble(layout: Layout, encoded: Iterator[Ids]) -> Ids:
    """The ids of a text, with those of its plain parts taken from an iterator."""
    if layout == _PLAIN:
        return next(encoded)
    parts = [next(encoded) if token_id is None else np.array([token_id], np.uint32) for token_id in layout]
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)
