"""How a corpus is cut into parts and these into counted words: by the compiled scanner, or by the `regex` package."""

import codecs
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from shared.bpe.encoding.added_tokens import AddedTokenMatcher
from shared.bpe.encoding.chunks import Chunker
from shared.bpe.patterns.named import TimeBudget, resolve_pattern, split
from shared.bpe.training.corpus import Chunk, Source, Texts, in_memory
from shared.bpe.training.word_counts import Bytes, Specials, WordCounts
from shared.bpe.vocabulary import AddedToken, encode_utf8

# What the pieces of a part take in memory, by its bytes: strings of a few characters in a dictionary.
_BYTES_PER_BYTE = 32


class Cutter(Protocol):
    """A pattern at work."""

    def chunks(self, source: Source, begin: int, longest: int) -> Iterator[Chunk]:
        """A source in parts that may be counted one by one, from a place where one ended.

        Raises:
            TooLongError: If a part would take more than `longest` bytes of memory.
        """

    def count(self, table: WordCounts, data: Bytes) -> Iterator[int]:
        """Count the words of a part, valid UTF-8.

        Yields:
            Where the table has no room: the bytes of what is next. To go on, it must have been emptied.
        """


class ScannerCutter:
    """A named pattern, run by the compiled scanner.

    Args:
        pattern: Its name.
        special_tokens: Never counted, and crossed by no word.
    """

    def __init__(self, pattern: str, special_tokens: Iterable[str]):
        self._pattern = pattern
        self._specials = Specials(map(encode_utf8, special_tokens))

    def chunks(self, source: Source, begin: int, longest: int) -> Iterator[Chunk]:
        """As in `Cutter`."""
        return source.chunks(self._specials, begin, longest)

    def count(self, table: WordCounts, data: Bytes) -> Iterator[int]:
        """As in `Cutter`."""
        begin = 0
        while (begin := table.count_chunk(self._pattern, data, begin, len(data), self._specials)) < len(data):
            yield len(data) - begin


class RegexCutter:
    """Any regular expression, of which nothing is known but that special tokens cut what it matches.

    Args:
        expression: The pattern.
        special_tokens: Never counted, and crossed by no word.
    """

    def __init__(self, expression: str, special_tokens: Sequence[str]):
        self._expression = expression
        self._special_tokens = special_tokens

    def chunks(self, source: Source, begin: int, longest: int) -> Iterator[Chunk]:
        """As in `Cutter`."""
        longest //= _BYTES_PER_BYTE
        if isinstance(source, Texts):
            yield from source.chunks(Specials(), begin, longest)
            return
        text = escaped_characters(source, begin, longest)
        chunker = Chunker(self._expression, _matcher(self._special_tokens))
        for block in chunker.blocks(text, name=source.name, longest=longest):
            data = np.frombuffer(block.encode(errors="surrogateescape"), dtype=np.uint8)
            yield in_memory(data, begin)
            begin += len(data)

    def count(self, table: WordCounts, data: Bytes) -> Iterator[int]:
        """As in `Cutter`."""
        text = data.tobytes().decode()
        yield from table.add_mapping(
            count_pieces([text], special_tokens=self._special_tokens, pattern=self._expression)
        )


def escaped_characters(source: Source, begin: int, longest: int) -> Iterator[str]:
    """A source as text whose wrong bytes are surrogates, so that encoding it with `surrogateescape` gives all back."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    for chunk in source.chunks(Specials(), begin, longest):
        yield decoder.decode(chunk.read().tobytes())
    yield decoder.decode(b"", final=True)


def training_chunker(special_tokens: Iterable[str], pattern: str) -> Chunker:
    """Cuts a long text into blocks that may be counted one by one: they give the same counts as the whole."""
    return Chunker(resolve_pattern(pattern), _matcher(special_tokens))


def count_pieces(texts: Iterable[str], *, special_tokens: Iterable[str], pattern: str) -> Counter[bytes]:
    """How often each piece between special tokens occurs, as UTF-8.

    Raises:
        TokenizerError: If a text holds a lone surrogate.
    """
    matcher = _matcher(special_tokens)
    counts: Counter[str] = Counter()
    budget = TimeBudget()
    for text in texts:
        for _, part, token in matcher.split(text):
            if token is None:
                counts.update(split(pattern, part, budget))
    return Counter({encode_utf8(piece): count for piece, count in counts.items()})


def _matcher(special_tokens: Iterable[str]) -> AddedTokenMatcher:
    return AddedTokenMatcher(AddedToken(index, content) for index, content in enumerate(special_tokens))
