"""The tokenizer: text to ids and back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from shared.bpe.encoding.chunks import Chunker
from shared.bpe.encoding.merge_tree import MergeTree, TreeNode
from shared.bpe.encoding.offsets import TokenColumns, TokenSpan
from shared.bpe.encoding.segments import AllowedSpecial
from shared.bpe.encoding.template import AnyIds, Ids
from shared.bpe.encoding.text_encoder import TextEncoder
from shared.bpe.encoding.token_bytes import TokenBytes, decode_strictly
from shared.bpe.errors import TokenizerError
from shared.bpe.formats import tiktoken as tiktoken_files
from shared.bpe.formats import tokenizer_json
from shared.bpe.formats.folder import read_verified
from shared.bpe.formats.plain_vocabulary import from_plain
from shared.bpe.vocabulary import AddedToken, Vocabulary, encode_utf8
from shared.system.files import write_bytes
from shared.system.garbage import collection_paused


class Tokenizer:
    """A BPE tokenizer: byte-level, or of SentencePiece with byte fallback. Any number of threads may share one.

    `decode(encode(text))` returns the text unchanged, except that a tokenizer made elsewhere may normalize it (NFC),
    put a space before it, or strip white space around some added tokens; one of SentencePiece writes U+2581 as a space.

    >>> tokenizer = train_bpe(["low low lower"], 300).tokenizer
    >>> tokenizer.encode("lower"), tokenizer.decode([257, 259])
    ([257, 259], 'lower')
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.pattern = vocabulary.pattern
        self._text_encoder = TextEncoder(vocabulary)
        self.special_tokens = self._text_encoder.segmenter.special_tokens
        self._bytes = {**vocabulary.spelled, **{t.id: encode_utf8(t.content) for t in vocabulary.added}}
        self.tokens: Mapping[int, bytes] = MappingProxyType(self._bytes)
        self._token_bytes = TokenBytes(self._bytes, self.special_tokens.values())

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[Vocabulary]]:
        """What is compiled is made again in the other process."""
        return type(self), (self.vocabulary,)

    @classmethod
    @collection_paused()
    def from_files(cls, path: str | Path, merges_path: str | Path | None = None) -> "Tokenizer":
        """Open a folder with tokenizer.json, or one such file; or GPT-2's two files, vocab.json and merges.txt.

        SentencePiece's tokenizer.model and llama2.c's tokenizer.bin are opened, too.

        Raises:
            TokenizerError: A file is missing, damaged, differs from the folder's checksums.json, or describes a
                tokenizer that would not be matched exactly.
        """
        return cls(read_verified(Path(path), None if merges_path is None else Path(merges_path)))

    @classmethod
    def from_vocab(
        cls,
        vocab: Mapping[int, bytes] | Mapping[bytes, int] | Mapping[str, int] | Mapping[str, str],
        merges: Iterable[tuple[bytes, bytes] | tuple[str, str] | Sequence[str] | str],
        special_tokens: Iterable[str] | None = None,
        pattern: str = "gpt2",
    ) -> "Tokenizer":
        """Make a tokenizer from a vocabulary and its merges, as training returns them.

        Args:
            vocab: Tokens by id, or ids by token; all ids are kept. A token may be bytes, or a string in GPT-2's byte
                alphabet, where a space is `Ġ`; an id may be a number or a string of digits, as in JSON.
            merges: Pairs of tokens by rank; strings may also be joined, as in `"Ġ t"`.
            special_tokens: Those that are not in the vocabulary get the ids after its last.
            pattern: The name of a pattern or a regular expression.

        Raises:
            TokenizerError: The parts do not fit together; names the entry or the merge, counted from 0.

        >>> vocab = {bytes([byte]): byte for byte in range(256)} | {b"lo": 256, b"low": 257}
        >>> Tokenizer.from_vocab(vocab, [(b"l", b"o"), (b"lo", b"w")]).encode("lower")
        [257, 101, 114]
        """
        return cls(from_plain(vocab, merges, special_tokens or (), pattern))

    @classmethod
    def from_tiktoken(cls, path: str | Path, *, pattern: str, special_tokens: Mapping[str, int]) -> "Tokenizer":
        """Open a tiktoken rank file, which holds neither the pattern nor the special tokens.

        Raises:
            TokenizerError: The file is damaged; names the line.
        """
        return cls(tiktoken_files.read(Path(path), pattern=pattern, special_tokens=special_tokens))

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json; equal tokenizers give equal bytes."""
        for name, content in self.files().items():
            write_bytes(Path(folder) / name, content)

    def files(self) -> dict[str, bytes]:
        """What `save` writes, by the names of the files."""
        return tokenizer_json.files(self.vocabulary)

    def to_tiktoken(self, path: str | Path) -> None:
        """Write a tiktoken rank file, and beside it PATH.json with the pattern and the special tokens.

        Raises:
            TokenizerError: The vocabulary has no such form; tiktoken needs ids in the order of ranks, for example.
        """
        tiktoken_files.write(Path(path), self.vocabulary)

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self._bytes)

    @cached_property
    def vocab_size(self) -> int:
        """The highest id plus one: the least number of rows of a model's embedding."""
        return max(self._bytes) + 1

    @cached_property
    def max_token_bytes(self) -> int:
        """The bytes of the longest token, added tokens included."""
        return max(map(len, self._bytes.values()))

    def token_lower_bound(self, text: str, *, allowed_special: AllowedSpecial = ()) -> int:
        """A lower bound of the number of tokens of a text, from its length alone.

        Raises:
            TokenizerError: `allowed_special` names something that is not a special token.
        """
        segmenter = self._text_encoder.segmenter
        min_bytes = segmenter.min_bytes(text, segmenter.matchers(allowed_special))
        return -(-min_bytes // self.max_token_bytes)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, over pattern, normalization, tokens, merges and added tokens with their flags.

        It does not depend on the file format. Which tokens begin and end a text is not part of it.
        """
        return self.vocabulary.fingerprint

    @property
    def end_of_text_id(self) -> int | None:
        """The id that ends a document: the `eos_token` of tokenizer_config.json, else `<|endoftext|>` if known."""
        return self._added_id(self.vocabulary.eos or "<|endoftext|>")

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, if tokenizer_config.json names one."""
        return self._added_id(self.vocabulary.bos)

    def encode(self, text: str, *, allowed_special: AllowedSpecial = (), add_special_tokens: bool = False) -> list[int]:
        """The ids of a text.

        Args:
            text: Any text without lone surrogates.
            allowed_special: Special tokens that are recognized in the text, or "all". Others are encoded as ordinary
                text, so that user input cannot contain control tokens.
            add_special_tokens: Put the tokenizer's own begin- and end-of-text ids around it, unless they are there.

        Raises:
            TokenizerError: `allowed_special` names something that is not a special token; the text holds a lone
                surrogate, or a character with a byte that has no token in a vocabulary made elsewhere; or a custom
                pattern takes too long.

        >>> result = train_bpe(["low low lower"], 300, special_tokens=["<|endoftext|>"])
        >>> result.tokenizer.encode("low<|endoftext|>", allowed_special="all")
        [257, 261]
        """
        ids = self._text_encoder.encode(text, allowed_special, add_special_tokens)
        return cast("list[int]", ids.tolist())

    def split_marked(
        self, text: str, mark: str = "", previous: str | AddedToken | None = None
    ) -> Iterator[str | AddedToken]:
        """The added tokens in a text, special ones too, and the text between them as `encode_segments` takes it.

        Args:
            text: A text.
            mark: A character within what looks like an added token, but is text; it is taken out.
            previous: The segment before this text, where this is a part of a longer one.
        """
        return self._text_encoder.segmenter.split_marked(text, mark, previous)

    def encode_segments(self, segments: Iterable[str]) -> list[Ids]:
        """The ids of text that is normalized already, and in which nothing is an added token: see `split_marked`."""
        return self._text_encoder.encode_segments(segments)

    def encode_to_numpy(
        self,
        text: str,
        *,
        allowed_special: AllowedSpecial = (),
        add_special_tokens: bool = False,
        max_threads: int | None = None,
    ) -> Ids:
        """`encode` to an array, with a tenth of the memory of a list.

        Long texts are encoded on all processors, or at most `max_threads` of them.
        """
        return self._text_encoder.encode(text, allowed_special, add_special_tokens, max_threads=max_threads)

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

        The arrays may be views of larger ones: copy those that you keep longer than the others.
        """
        return self._text_encoder.encode_batch(
            texts, allowed_special, add_special_tokens=add_special_tokens, max_threads=max_threads
        )

    def encode_documents(
        self,
        data: bytes | memoryview,
        separator: str | None,
        dtype: npt.DTypeLike = np.uint32,
        *,
        continues: bool = False,
    ) -> "npt.NDArray[np.unsignedinteger[Any]]":
        """The ids of documents in UTF-8: `encode` of each, and the separator between them, without making strings.

        Args:
            data: Valid UTF-8.
            separator: A special token that is recognized in the text; None if none is.
            dtype: The type of the ids.
            continues: Whether this continues other text, as `Chunker.parts` says.
        """
        return self._text_encoder.encode_documents(data, separator, dtype, continues=continues)

    @property
    def can_split_bytes(self) -> bool:
        """Whether UTF-8 can be split into chunks without decoding it to a string.

        This holds for named patterns, without normalization, if all added tokens are special and strip nothing.
        """
        return self._text_encoder.can_split_bytes

    @property
    def is_linear(self) -> bool:
        """Whether encoding takes time about proportional to the length of the text, as with every named pattern.

        A custom pattern may backtrack, until a time limit ends it: see `patterns.split`.
        """
        return self._text_encoder.is_linear

    def encode_iterable(self, blocks: Iterable[str], *, allowed_special: AllowedSpecial = ()) -> Iterator[int]:
        """The ids of a text that arrives in blocks, the same wherever it is split.

        Lazy, with bounded memory as long as the text has boundaries: a space or newline after a letter, a newline
        before a letter, an added token. With a custom pattern, only added tokens are boundaries.

        >>> [*tokenizer.encode_iterable(["Hel", "lo wor", "ld"])] == tokenizer.encode("Hello world")
        True
        """
        for chunk, continues in self.chunker(allowed_special=allowed_special).parts(blocks):
            ids = self._text_encoder.encode(chunk, allowed_special, add_special_tokens=False, continues=continues)
            yield from ids.tolist()

    def encode_with_offsets(
        self, text: str, *, allowed_special: AllowedSpecial = (), add_special_tokens: bool = False
    ) -> list[TokenSpan]:
        r"""`encode`, with the bytes and the offsets of every token; ids put around the text cover no character.

        >>> [(span.bytes, span.start, span.end) for span in tokenizer.encode_with_offsets("low é")]
        [(b'low', 0, 3), (b' ', 3, 4), (b'\xc3', 4, 5), (b'\xa9', 4, 5)]
        """
        columns = self.encode_to_columns(text, allowed_special=allowed_special, add_special_tokens=add_special_tokens)
        return columns.spans()

    def encode_to_columns(
        self, text: str, *, allowed_special: AllowedSpecial = (), add_special_tokens: bool = False
    ) -> TokenColumns:
        """`encode_with_offsets` as a list for each attribute of all tokens, in a third of the time."""
        return self._text_encoder.encode_to_columns(
            text, allowed_special, add_special_tokens=add_special_tokens, tokens=self._bytes
        )

    def decode(
        self,
        ids: AnyIds,
        *,
        errors: Literal["replace", "strict"] = "replace",
        skip_special_tokens: bool = False,
        max_bytes: int | None = None,
        continues: bool = False,
    ) -> str:
        """The text of ids. Bytes are joined first, so a character may span several tokens.

        Args:
            ids: Token ids.
            errors: "replace" puts U+FFFD where the bytes are not UTF-8, "strict" raises.
            skip_special_tokens: Omit special tokens.
            max_bytes: The most bytes that the tokens may stand for.
            continues: Whether the ids follow others. A tokenizer of SentencePiece puts a space before a text, which is
                omitted at the beginning of the text of ids, as in Hugging Face's tokenizers, unless they follow others.

        Raises:
            TokenizerError: An id is not in the vocabulary, or the bytes are not UTF-8 under "strict".
            TextTooLongError: The bytes exceed `max_bytes`.
        """
        if errors not in {"replace", "strict"}:
            raise TokenizerError(f'errors must be "replace" or "strict", not {errors!r}')
        data = self.decode_bytes(ids, skip_special_tokens=skip_special_tokens, max_bytes=max_bytes, continues=continues)
        return data.decode(errors="replace") if errors == "replace" else decode_strictly(data)

    def decode_bytes(
        self,
        ids: AnyIds,
        *,
        skip_special_tokens: bool = False,
        max_bytes: int | None = None,
        continues: bool = False,
    ) -> bytes:
        """The bytes of ids, joined; the arguments are those of `decode`.

        Raises:
            TokenizerError: An id is not in the vocabulary; names its index.
            TextTooLongError: The bytes exceed `max_bytes`.
        """
        data = self._token_bytes.join(ids, skip_control=skip_special_tokens, max_bytes=max_bytes)
        return data.removeprefix(b" ") if self.vocabulary.strips_space and not continues else data

    def have_text(self, ids: Iterable[int]) -> bool:
        """Whether any of the ids is not a special token."""
        special = frozenset(self.special_tokens.values())
        return any(token_id not in special for token_id in ids)

    def token_bytes(self, id: int, *, skip_special_tokens: bool = False) -> bytes:  # noqa: A002  # the name that the whole interface uses
        """The bytes of one id; none of a special token that is skipped.

        Raises:
            TokenizerError: It is not in the vocabulary.
        """
        return self._token_bytes.of(id, skip_control=skip_special_tokens)

    def merge_tree(self, id: int) -> list[TreeNode]:  # noqa: A002  # as above
        """How merges make the token of an id from its bytes, or with byte fallback from its characters.

        See `MergeTree.of`. The token of a byte is not made.

        Raises:
            TokenizerError: It is not in the vocabulary.
        """
        token = self.token_bytes(id)
        return [TreeNode(0, id, 0, 1, None)] if id in self.vocabulary.byte_tokens else self._merge_tree.of(token)

    def chunker(self, *, allowed_special: AllowedSpecial = (), separator: str | None = None) -> Chunker:
        """A `Chunker` whose chunks this tokenizer encodes as it would the whole text.

        Args:
            allowed_special: Special tokens that are recognized in the text, or "all".
            separator: The one of them that separates documents, for `encode_documents`.
        """
        return self._text_encoder.chunker(allowed_special, separator)

    def warm_up(self) -> None:
        """Load the kernels and build the tables now, instead of with the first text."""
        self.decode(self.encode(" "))

    @cached_property
    def _merge_tree(self) -> MergeTree:
        return MergeTree(self.vocabulary)

    def _added_id(self, content: str | None) -> int | None:
        return next((t.id for t in self.vocabulary.added if t.content == content), None)
