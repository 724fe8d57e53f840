"""Text to ids: added tokens, plain text between them, and the ids that stand around it."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shared.bpe.encoding.chunks import Chunker
from shared.bpe.encoding.offsets import TokenColumns, columns_of, with_template
from shared.bpe.encoding.segments import AllowedSpecial, Layout, Segmenter, join_segments
from shared.bpe.encoding.template import Ids, Template
from shared.bpe.errors import SurrogateError, TokenizerError
from shared.bpe.kernels.boundaries import SpecialTokens, find_all
from shared.bpe.patterns.named import is_named
from shared.bpe.vocabulary import Vocabulary, encode_utf8

# Numba takes a while to import, and the kernels to load: reading a vocabulary needs neither.
if TYPE_CHECKING:
    from shared.bpe.encoding.encoder import Encoder

_SHORT = 1 << 14  # characters that are encoded while no other thread may run Python: for less than 0.2 ms
_LONG = 3 << 18  # characters from which a text is divided among threads


class TextEncoder:
    """Encodes texts by one vocabulary; the methods are those of `Tokenizer`, which describes them.

    Attributes:
        segmenter: Splits texts into added tokens and plain text.
        is_linear: As `Tokenizer.is_linear`.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self.is_linear = is_named(vocabulary.pattern) or bool(vocabulary.byte_tokens)
        self._template = Template(vocabulary.prefix, vocabulary.suffix)
        self.segmenter = Segmenter(vocabulary)
        # Whether the bytes that are encoded are those of the text, if no special token is allowed.
        all_special = all(token.special for token in vocabulary.added)
        self._is_plain = self.segmenter.keeps_text and all_special and self.is_linear

    def encode(
        self,
        text: str,
        allowed_special: AllowedSpecial,
        add_special_tokens: bool,
        *,
        continues: bool = False,
        max_threads: int | None = None,
    ) -> Ids:
        """As `Tokenizer.encode_to_numpy`, and for what `Chunker.parts` yields."""
        if not allowed_special and not add_special_tokens and len(text) <= _SHORT and self._is_plain:
            return self._encoder.encode_short(text)
        ids = self._encode(text, allowed_special, continues=continues, max_threads=max_threads)
        return self._template.wrap(ids) if add_special_tokens else ids

    def _encode(
        self,
        text: str,
        allowed_special: AllowedSpecial,
        *,
        continues: bool,
        separator: str | None = None,
        max_threads: int | None = None,
    ) -> Ids:
        matchers = self.segmenter.matchers(allowed_special)
        plain, layout = self.segmenter.split_plain(text, matchers, continues=continues, separator=separator)
        return join_segments(layout, self._encode_plain(plain, max_threads))

    def encode_segments(self, texts: Iterable[str]) -> list[Ids]:
        """As `Tokenizer.encode_segments`."""
        return [*self._encode_plain([*texts], max_threads=1)]

    def _encode_plain(self, segments: Sequence[str], max_threads: int | None) -> Iterator[Ids]:
        if self.is_linear and sum(map(len, segments)) <= _SHORT:
            return map(self._encoder.encode_short, segments)
        if self.is_linear and len(segments) == 1 and len(segments[0]) > _LONG and max_threads != 1:
            return iter([self._encoder.encode_long(segments[0], max_threads=max_threads)])
        return self._encoder.encode_each(segments, max_threads=1)

    def encode_batch(
        self,
        texts: Iterable[str],
        allowed_special: AllowedSpecial,
        *,
        add_special_tokens: bool,
        max_threads: int | None,
    ) -> list[Ids]:
        """As `Tokenizer.encode_batch_to_numpy`."""
        layouts: list[Layout] = []
        plain = texts
        if allowed_special or not self._is_plain:
            plain = self.segmenter.split_plain_of_each(texts, self.segmenter.matchers(allowed_special), layouts)
        try:
            batch = [*self._encoder.encode_each(plain, max_threads=max_threads)]
        except SurrogateError as error:
            segments = accumulate(layout.count(None) for layout in layouts)
            index = bisect_right([*segments], error.index) if layouts else error.index
            raise TokenizerError(f"text {index}: {error}") from None
        if layouts:
            encoded = iter(batch)
            batch = [join_segments(layout, encoded) for layout in layouts]
        return [self._template.wrap(ids) for ids in batch] if add_special_tokens else batch

    def encode_documents(
        self, data: bytes | memoryview, separator: str | None, dtype: npt.DTypeLike, *, continues: bool
    ) -> "npt.NDArray[np.unsignedinteger[Any]]":
        """As `Tokenizer.encode_documents`."""
        allowed = () if separator is None else (separator,)
        if not self.can_split_bytes:
            text = str(data, "utf-8")
            return self._encode(text, allowed, continues=continues, separator=separator).astype(dtype)
        self.segmenter.matchers(allowed)  # raises for an unknown separator
        spelling = b"" if separator is None else separator.encode()
        terminator = -1 if separator is None else self.segmenter.special_tokens[separator]
        ends = np.append(_places(data, spelling), len(data))
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + len(spelling)])
        return self._encoder.encode_parts(data, starts, ends, terminator=terminator, dtype=dtype)[0]

    def encode_to_columns(
        self, text: str, allowed_special: AllowedSpecial, *, add_special_tokens: bool, tokens: Mapping[int, bytes]
    ) -> TokenColumns:
        """As `Tokenizer.encode_to_columns`; `tokens` are all of them, by id."""
        encode_utf8(text)  # raises for a lone surrogate
        segments = [*self.segmenter.segments(text, self.segmenter.matchers(allowed_special), with_origins=True)]
        plain = [segment.text for segment in segments if segment.token is None]
        columns = columns_of(segments, self._encode_plain(plain, max_threads=1), tokens)
        return with_template(columns, len(text), self._template, tokens) if add_special_tokens else columns

    @cached_property
    def can_split_bytes(self) -> bool:
        """As `Tokenizer.can_split_bytes`."""
        added = self._vocabulary.added
        plain = all(token.special and not token.lstrip and not token.rstrip for token in added)
        return plain and self.is_linear and self.segmenter.keeps_text

    def chunker(self, allowed_special: AllowedSpecial, separator: str | None) -> Chunker:
        """As `Tokenizer.chunker`."""
        matchers, vocabulary = self.segmenter.matchers(allowed_special), self._vocabulary
        return Chunker(
            vocabulary.pattern,
            matchers.verbatim,
            nfc=vocabulary.nfc,
            prefix_space=vocabulary.prefix_space,
            only_at_added=bool(matchers.normalized) or (vocabulary.prepended_space and not vocabulary.byte_tokens),
            between_pieces=self._has_pieces_of_words,
            only_first=vocabulary.only_first,
            separator=separator,
        )

    @cached_property
    def _has_pieces_of_words(self) -> bool:
        """Whether this is a vocabulary with byte fallback in which no piece has a space behind another character."""
        vocabulary = self._vocabulary
        return bool(vocabulary.byte_tokens) and not any(b" " in t.lstrip(b" ") for t in vocabulary.tokens.values())

    @cached_property
    def _encoder(self) -> "Encoder":
        from shared.bpe.encoding.encoder import Encoder

        return Encoder(self._vocabulary)


def _places(data: bytes | memoryview, spelling: bytes) -> npt.NDArray[np.int64]:
    """Where a special token is spelled; nowhere if it is empty."""
    places = np.empty(len(data) // len(spelling) if spelling else 0, np.int64)
    if not len(places):
        return places
    special = SpecialTokens(np.frombuffer(spelling, np.uint8), np.array([0, len(spelling)]))
    return places[: find_all(np.frombuffer(data, np.uint8), special, places)]
