"""Splitting a corpus into pretokens and counting them: by the compiled scanner, or by the `regex` package."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from shared.bpe.encoding.added_tokens import AddedTokenMatcher
from shared.bpe.encoding.chunks import Chunker
from shared.bpe.patterns.named import TimeBudget, split
from shared.bpe.training.corpus import Bytes, Chunk, Source, Specials, Texts, escaped_characters, in_memory
from shared.bpe.training.pretoken_counts import PretokenCounts
from shared.bpe.vocabulary import AddedToken, encode_utf8

# Memory of a chunk's pretokens for each of its bytes: strings of a few characters in a dictionary.
_BYTES_PER_BYTE = 32


class Pretokenizer(Protocol):
    """A pattern and the special tokens that it never splits."""

    def chunks(self, source: Source, begin: int, longest: int) -> Iterator[Chunk]:
        """The chunks of a source, from an offset at which an earlier chunk ended.

        Raises:
            TooLongError: A chunk exceeds `longest` bytes of memory.
        """

    def count(self, table: PretokenCounts, data: Bytes) -> Iterator[int]:
        """Count the pretokens of a chunk, valid UTF-8.

        Yields:
            Whenever the table is full: the bytes that the next pretokens have. The caller must then empty the table.
        """


class ScannerPretokenizer:
    """A named pattern, run by the compiled scanner.

    Args:
        pattern: The name of the pattern.
        special_tokens: Not counted; no pretoken spans one.
    """

    def __init__(self, pattern: str, special_tokens: Iterable[str]):
        self._pattern = pattern
        self._specials = Specials(map(encode_utf8, special_tokens))

    def chunks(self, source: Source, begin: int, longest: int) -> Iterator[Chunk]:
        """As in `Pretokenizer`."""
        return source.chunks(self._specials, begin, longest)

    def count(self, table: PretokenCounts, data: Bytes) -> Iterator[int]:
        """As in `Pretokenizer`."""
        begin = 0
        while (begin := table.count_chunk(self._pattern, data, begin, len(data), self._specials)) < len(data):
            yield len(data) - begin


class RegexPretokenizer:
    """Any regular expression; only special tokens are known to be boundaries of its matches.

    Args:
        expression: The regular expression.
        special_tokens: Not counted; no pretoken spans one.
    """

    def __init__(self, expression: str, special_tokens: Sequence[str]):
        self._expression = expression
        self._special_tokens = special_tokens

    def chunks(self, source: Source, begin: int, longest: int) -> Iterator[Chunk]:
        """As in `Pretokenizer`."""
        longest //= _BYTES_PER_BYTE
        if isinstance(source, Texts):
            yield from source.chunks(Specials(), begin, longest)
            return
        blocks = escaped_characters(source, begin, longest)
        chunker = Chunker(self._expression, _matcher(self._special_tokens))
        for chunk in chunker.chunks(blocks, name=source.name, longest=longest):
            data = np.frombuffer(chunk.encode(errors="surrogateescape"), dtype=np.uint8)
            yield in_memory(data, begin)
            begin += len(data)

    def count(self, table: PretokenCounts, data: Bytes) -> Iterator[int]:
        """As in `Pretokenizer`."""
        text = data.tobytes().decode()
        yield from table.add_mapping(
            count_pretokens([text], special_tokens=self._special_tokens, pattern=self._expression)
        )


def count_pretokens(texts: Iterable[str], *, special_tokens: Iterable[str], pattern: str) -> Counter[bytes]:
    """How often each pretoken between special tokens occurs, as UTF-8.

    Raises:
        TokenizerError: A text holds a lone surrogate.

    >>> count_pretokens(["low low"], special_tokens=[], pattern=PATTERNS["gpt2"])
    Counter({b'low': 1, b' low': 1})
    """
    matcher = _matcher(special_tokens)
    counts: Counter[str] = Counter()
    budget = TimeBudget()
    for text in texts:
        for _, part, token in matcher.split(text):
            if token is None:
                counts.update(split(pattern, part, budget))
    return Counter({encode_utf8(pretoken): count for pretoken, count in counts.items()})


def _matcher(special_tokens: Iterable[str]) -> AddedTokenMatcher:
    return AddedTokenMatcher(AddedToken(index, content) for index, content in enumerate(special_tokens))
