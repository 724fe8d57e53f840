"""The tokenizer: text to ids and back."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from shared.bpe.encoding.chunks import Chunker
from shared.bpe.encoding.offsets import Piece, place_tokens
from shared.bpe.encoding.text_memory import utf8_of
from shared.bpe.encoding.text_parts import AllowedSpecial, Ids, Layout, TextCutter, assemble
from shared.bpe.encoding.token_bytes import TokenBytes
from shared.bpe.errors import TokenizerError
from shared.bpe.formats import tiktoken as tiktoken_files
from shared.bpe.formats import tokenizer_json
from shared.bpe.formats.folder import read_vocabulary
from shared.bpe.formats.plain_vocabulary import from_plain
from shared.bpe.patterns.named import is_named
from shared.bpe.vocabulary import Vocabulary, encode_utf8
from shared.system.checksums import ChecksumError, Checksums

# Numba takes a while to import, and the kernels to load: a tokenizer that only tells its size needs neither.
if TYPE_CHECKING:
    from shared.bpe.encoding.encoder import Encoder

# Characters of which each has four bytes at most, so that they are a short text to the encoder.
_SHORT = 1 << 14
# Characters beyond which a text is cut into blocks, for threads to share.
_LONG = 3 << 18
# NFC makes at least two bytes of three characters, as of U+03B9 U+0308 U+0301; a test looks at all of Unicode.
_NFC_CHARACTERS, _NFC_BYTES = 3, 2


class Tokenizer:
    """A byte-level BPE tokenizer. It never changes, so any number of threads may share one.

    Every text comes back from `decode(encode(text))` as it was, except that a tokenizer made elsewhere may normalize
    (NFC), put a space before the text, or strip white space around some added tokens.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.pattern = vocabulary.pattern
        self._cutter = TextCutter(vocabulary)
        self.special_tokens = self._cutter.special_tokens
        self._bytes = {**vocabulary.tokens, **{t.id: encode_utf8(t.content) for t in vocabulary.added}}
        self.tokens: Mapping[int, bytes] = MappingProxyType(self._bytes)
        self._token_bytes = TokenBytes(self._bytes, self.special_tokens.values())

    @classmethod
    def from_files(cls, path: str | Path, merges_path: str | Path | None = None) -> "Tokenizer":
        """Open a folder with tokenizer.json (or vocab.json and merges.txt), one tokenizer.json, or GPT-2's two files.

        Raises:
            TokenizerError: If a file is missing, damaged, differs from the folder's checksums.json, or describes a
                tokenizer that would not be matched exactly.
        """
        path = Path(path)
        folder = path if path.is_dir() else path.parent
        try:
            Checksums.read(folder).verify_small_files()
        except ChecksumError as error:
            raise TokenizerError(str(error)) from error
        return cls(read_vocabulary(path, None if merges_path is None else Path(merges_path)))

    @classmethod
    def from_vocab(
        cls,
        vocab: Mapping[int, bytes] | Mapping[bytes, int] | Mapping[str, int] | Mapping[str, str],
        merges: Iterable[tuple[bytes, bytes] | tuple[str, str] | Sequence[str] | str],
        special_tokens: Iterable[str] | None = None,
        pattern: str = "gpt2",
    ) -> "Tokenizer":
        """Make a tokenizer of what learning gives: a vocabulary and its merges.

        Args:
            vocab: Tokens by id, or ids by token; all ids are kept. As JSON holds it, an id is a number or its digits,
                and a token in GPT-2's byte alphabet, where a space is `Ġ`.
            merges: Pairs of tokens in the order that they were learned in; in that alphabet also as `"Ġ t"`.
            special_tokens: Those that are not in the vocabulary get the ids after its last.
            pattern: The name of a pattern or a regular expression.

        Raises:
            TokenizerError: If the parts do not fit together; names the entry or the merge, counted from 0.
        """
        return cls(from_plain(vocab, merges, special_tokens or (), pattern))

    @classmethod
    def from_tiktoken(cls, path: str | Path, *, pattern: str, special_tokens: Mapping[str, int]) -> "Tokenizer":
        """Open a tiktoken rank file, which holds neither the pattern nor the special tokens.

        Raises:
            TokenizerError: If the file is damaged; names the line.
        """
        return cls(tiktoken_files.read(Path(path), pattern=pattern, special_tokens=special_tokens))

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, byte for byte the same whenever the tokenizer is."""
        tokenizer_json.write(Path(folder), self.vocabulary)

    def to_tiktoken(self, path: str | Path) -> None:
        """Write a tiktoken rank file, and beside it PATH.json with the pattern and the special tokens.

        Raises:
            TokenizerError: If the ids do not follow the ranks, as tiktoken demands.
        """
        tiktoken_files.write(Path(path), self.vocabulary)

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self._bytes)

    @cached_property
    def vocab_size(self) -> int:
        """The highest id plus one: the rows that a model's embedding needs at least."""
        return max(self._bytes) + 1

    @cached_property
    def max_token_bytes(self) -> int:
        """The length of the longest token, added ones included."""
        return max(map(len, self._bytes.values()))

    def fewest_tokens(self, text: str, *, allowed_special: AllowedSpecial = ()) -> int:
        """How many tokens a text has at least, by its length: `encode` gives no fewer.

        Raises:
            TokenizerError: If `allowed_special` names no control token.
        """
        matchers = self._cutter.matchers(allowed_special)
        num_bytes = min(matchers.verbatim.count_kept(text), matchers.normalized.count_kept(text))  # at least
        if self.vocabulary.nfc:
            num_bytes = num_bytes * _NFC_BYTES // _NFC_CHARACTERS
        return -(-num_bytes // self.max_token_bytes)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, over pattern, normalization, tokens, merges and added tokens with their flags.

        Equal for the same tokenizer whatever files it came from. Which tokens begin and end a text is not part of it.
        """
        return self.vocabulary.fingerprint

    @property
    def end_of_text_id(self) -> int | None:
        """The id that ends a document: the `eos_token` of tokenizer_config.json, else `<|endoftext|>` if known."""
        return self._added_id(self.vocabulary.eos or "<|endoftext|>")

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, where tokenizer_config.json names one."""
        return self._added_id(self.vocabulary.bos)

    def encode(self, text: str, *, allowed_special: AllowedSpecial = (), add_special_tokens: bool = False) -> list[int]:
        """The ids of a text.

        Args:
            text: Any text without lone surrogates.
            allowed_special: Control tokens recognised in the text, or "all". Others are spelt out as ordinary text, so
                that a text from a user never turns into a control token.
            add_special_tokens: Put the tokenizer's own begin- and end-of-text ids around it, unless they are there.

        Raises:
            TokenizerError: If `allowed_special` names no control token, the text holds a lone surrogate, or a character
                with a byte that has no token in a vocabulary made elsewhere, or a custom pattern takes too long for it.
        """
        ids = self.encode_to_numpy(text, allowed_special=allowed_special, add_special_tokens=add_special_tokens)
        return cast("list[int]", ids.tolist())

    def encode_to_numpy(
        self, text: str, *, allowed_special: AllowedSpecial = (), add_special_tokens: bool = False
    ) -> Ids:
        """`encode` to an array, which takes a tenth of the memory of a list; a long text on all processors."""
        if not allowed_special and not add_special_tokens and len(text) <= _SHORT and self._is_plain:
            return self._encoder.encode_short(encode_utf8(text))
        matchers = self._cutter.matchers(allowed_special)
        if len(text) > _LONG and self.is_cut_by_bytes and not matchers.verbatim.may_occur_in(text):
            ids = self._encoder.encode_long(utf8_of(text))
        else:
            plain, layout = self._cutter.take_apart(text, matchers)
            ids = assemble(layout, self._encoder.encode_each(plain, max_threads=1))
        return self._with_template(ids) if add_special_tokens else ids

    def encode_batch(
        self, texts: Iterable[str], *, allowed_special: AllowedSpecial = (), add_special_tokens: bool = False
    ) -> list[list[int]]:
        """`encode` for each text, on all processors; errors name the index of the text."""
        batch = self.encode_batch_to_numpy(
            texts, allowed_special=allowed_special, add_special_tokens=add_special_tokens
        )
        return [ids.tolist() for ids in batch]

    def encode_batch_to_numpy(
        self,
        texts: Iterable[str],
        *,
        allowed_special: AllowedSpecial = (),
        add_special_tokens: bool = False,
        max_threads: int | None = None,
    ) -> list[Ids]:
        """`encode_to_numpy` for each text, on all processors or at most `max_threads` of them.

        The arrays are parts of larger ones: copy those that are to outlive the others.
        """
        layouts: list[Layout] = []
        parts = self._cutter.take_each_apart(texts, self._cutter.matchers(allowed_special), layouts)
        encoded = iter([*self._encoder.encode_each(parts, max_threads=max_threads)])
        batch = [assemble(layout, encoded) for layout in layouts]
        return [self._with_template(ids) for ids in batch] if add_special_tokens else batch

    def encode_documents(
        self, data: bytes | memoryview, separator: str | None, dtype: npt.DTypeLike = np.uint32
    ) -> "npt.NDArray[np.unsignedinteger[Any]]":
        """The ids of UTF-8 as it lies in a file: `encode` with only the separator allowed, without making a text of it.

        Args:
            data: Valid UTF-8.
            separator: A special token, which gives its id wherever it stands; None if nothing is special.
            dtype: Of the ids.
        """
        allowed = () if separator is None else (separator,)
        if not self.is_cut_by_bytes:
            return self.encode_to_numpy(str(data, "utf-8"), allowed_special=allowed).astype(dtype)
        self._cutter.matchers(allowed)
        bounds = [0]
        if separator is not None:
            for match in re.finditer(re.escape(separator.encode()), data):
                bounds += match.span()
        places = np.array([*bounds, len(data)], np.int64)
        terminator = -1 if separator is None else self.special_tokens[separator]
        starts, ends = places[::2].copy(), places[1::2].copy()
        return self._encoder.encode_parts(data, starts, ends, terminator=terminator, dtype=dtype)[0]

    @property
    def is_cut_by_bytes(self) -> bool:
        """Whether bytes can be cut without making a text of them.

        So it is with a named pattern, text encoded as it is, and added tokens that are special and strip nothing.
        """
        added = self.vocabulary.added
        plain = all(token.special and not token.lstrip and not token.rstrip for token in added)
        return plain and is_named(self.pattern) and self._cutter.keeps_text

    @property
    def is_linear(self) -> bool:
        """Whether text is encoded in time proportional to its length, as by a named pattern.

        A custom one may look at the same characters again and again, until a limit ends it: see `patterns.split`.
        """
        return is_named(self.pattern)

    def encode_iterable(self, blocks: Iterable[str], *, allowed_special: AllowedSpecial = ()) -> Iterator[int]:
        """The ids of a text that arrives in blocks, the same wherever it is split.

        Lazy, with bounded memory as long as the text has boundaries: a space or newline after a letter, a newline
        before a letter, an added token. With a custom pattern, only added tokens are boundaries.

        >>> [*tokenizer.encode_iterable(["Hel", "lo wor", "ld"])] == tokenizer.encode("Hello world")
        True
        """
        for chunk in self.chunker(allowed_special=allowed_special).chunks(blocks):
            yield from self.encode(chunk, allowed_special=allowed_special)

    def encode_with_pieces(
        self, text: str, *, allowed_special: AllowedSpecial = (), add_special_tokens: bool = False
    ) -> list[Piece]:
        """`encode`, with the bytes and the place of every token; ids put around the text have an empty place."""
        pieces: list[Piece] = []
        encode_utf8(text)
        parts = [*self._cutter.parts(text, self._cutter.matchers(allowed_special), placed=True)]
        plain = (part.text.encode() for part in parts if part.token is None)
        encoded = self._encoder.encode_each(plain, max_threads=1)
        for part in parts:
            if part.token is not None:
                pieces.append(self._added_piece(part.token.id, part.places[0][0], part.places[-1][1]))
            else:
                pieces += place_tokens(part.text, next(encoded).tolist(), self._bytes, part.places)
        if not add_special_tokens:
            return pieces
        before, after = self._template_around([piece.id for piece in pieces])
        return [
            *(self._added_piece(token_id, 0, 0) for token_id in before),
            *pieces,
            *(self._added_piece(token_id, len(text), len(text)) for token_id in after),
        ]

    def decode(
        self,
        ids: Sequence[int],
        *,
        errors: Literal["replace", "strict"] = "replace",
        skip_special_tokens: bool = False,
        max_bytes: int | None = None,
    ) -> str:
        """The text of ids. Bytes are joined first, so a character may be spread over several tokens.

        Args:
            ids: Token ids.
            errors: "replace" puts U+FFFD where the bytes are not UTF-8, "strict" raises.
            skip_special_tokens: Leave control tokens out.
            max_bytes: The most bytes that the tokens may stand for.

        Raises:
            TokenizerError: If an id is no token's, or the bytes are not UTF-8 under "strict".
            TextTooLongError: If the bytes are more than `max_bytes`.
        """
        if errors not in {"replace", "strict"}:
            raise TokenizerError(f'errors must be "replace" or "strict", not {errors!r}')
        data = self.decode_bytes(ids, skip_special_tokens=skip_special_tokens, max_bytes=max_bytes)
        try:
            return data.decode(errors=errors)
        except UnicodeDecodeError as error:
            raise TokenizerError(
                f"the tokens are not UTF-8 text: byte {error.start} of their {len(data)} bytes is "
                f'0x{data[error.start]:02x} ({error.reason}); errors="replace" puts U+FFFD there'
            ) from None

    def decode_bytes(
        self, ids: Sequence[int], *, skip_special_tokens: bool = False, max_bytes: int | None = None
    ) -> bytes:
        """The bytes of ids, joined.

        Raises:
            TokenizerError: If an id is no token's; names its index.
            TextTooLongError: If the bytes are more than `max_bytes`.
        """
        return self._token_bytes.join(ids, skip_control=skip_special_tokens, max_bytes=max_bytes)

    def token_bytes(self, id: int) -> bytes:  # noqa: A002  # the name that the whole interface uses
        """The bytes of one id.

        Raises:
            TokenizerError: If it is no token's.
        """
        return self._token_bytes.of(id)

    def chunker(self, *, allowed_special: AllowedSpecial = ()) -> Chunker:
        """A `Chunker` whose chunks this tokenizer encodes as it would the whole text."""
        matchers, vocabulary = self._cutter.matchers(allowed_special), self.vocabulary
        return Chunker(
            self.pattern,
            matchers.verbatim,
            nfc=vocabulary.nfc,
            prefix_space=vocabulary.prefix_space,
            only_at_added=bool(matchers.normalized),
        )

    def warm_up(self) -> None:
        """Load the kernels and lay out the vocabulary now, so that the first text need not wait for it."""
        self.decode(self.encode(" "))

    @cached_property
    def _encoder(self) -> "Encoder":
        from shared.bpe.encoding.encoder import Encoder

        return Encoder(self.vocabulary)

    @cached_property
    def _is_plain(self) -> bool:
        """Whether text is encoded as it is, where no special token is allowed."""
        return self._cutter.keeps_text and all(t.special for t in self.vocabulary.added) and is_named(self.pattern)

    def _with_template(self, ids: Ids) -> Ids:
        before, after = self._template_around(ids.tolist())
        return np.concatenate([np.array(before, np.uint32), ids, np.array(after, np.uint32)])

    def _added_piece(self, token_id: int, start: int, end: int) -> Piece:
        return Piece(token_id, self._bytes[token_id], start, end, special=True)

    def _template_around(self, ids: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids to put before and after a text: none where it has them already, so that they never double."""
        prefix, suffix = self.vocabulary.prefix, self.vocabulary.suffix
        before = () if tuple(ids[: len(prefix)]) == prefix else prefix
        after = () if tuple(ids[len(ids) - len(suffix) :]) == suffix else suffix
        return before, after

    def _added_id(self, content: str | None) -> int | None:
        return next((t.id for t in self.vocabulary.added if t.content == content), None)
