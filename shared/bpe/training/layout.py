"""The distinct words of a corpus laid out for merging: see `kernels.layout`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.bpe.kernels import layout
from shared.bpe.training.word_counts import WordCounts
from shared.system.thread_pool import in_order

# The distinct words in one table or, one after the other, in several that share no word.
Partitions = Callable[[], Iterator[WordCounts]]

_Item = TypeVar("_Item")

# text, ids and weights
BYTES_PER_POSITION = 1 + 4 + 8 / layout.GROUP

_WORTH_A_THREAD = 1 << 16  # words or positions
_MAX_DIGIT = (1 << 16) - 1


@dataclass(frozen=True)
class WordTotals:
    """What was counted, and what merging takes up.

    Attributes:
        distinct: Distinct words.
        words: Occurrences.
        num_bytes: Bytes of all occurrences.
        positions: Of the layout.
        left_out: Occurrences of words below the minimum count, which are in none of the others.
    """

    distinct: int = 0
    words: int = 0
    num_bytes: int = 0
    positions: int = 0
    left_out: int = 0


class _Part(NamedTuple):
    """Words of a table that one thread lays out, by number, and where they begin."""

    order: NDArray[np.int64]
    begin: int


class WordLayout:
    """Words by position. They are measured when this is made, and written by `write`.

    Args:
        partitions: The words. They are gone through twice, and not kept.
        prefix: Bytes in front of all words, for tokens that no word may spell.
        min_count: Words that occur less often are left out.
        threads: How many write.
        max_bytes: If they take more, they are measured, but cannot be written. None if there is no limit.

    Attributes:
        totals: What was counted.
        text: Bytes by position, once written.
        ids: Tokens by position, once written.
        weights: Occurrences by group of positions, once written.
    """

    text: NDArray[np.uint8]
    ids: NDArray[np.int32]
    weights: NDArray[np.int64]

    def __init__(
        self,
        partitions: Partitions,
        prefix: bytes,
        *,
        min_count: int = 1,
        threads: int = 1,
        max_bytes: int | None = None,
    ):
        self._partitions = partitions
        self._prefix = prefix
        self._threads = threads
        self._begin = layout.GROUP * (len(prefix) // layout.GROUP + 1)
        self._parts: list[list[_Part]] = []
        self.totals = self._measure(min_count, max_bytes)

    def write(self) -> None:
        """Make the arrays."""
        self.text = np.empty(self.totals.positions, dtype=np.uint8)
        self.text[: len(self._prefix)] = np.frombuffer(self._prefix, dtype=np.uint8)
        self.ids = np.empty(self.totals.positions, dtype=np.int32)
        self.ids[: self._begin] = layout.GAP
        self.weights = np.zeros(self.totals.positions // layout.GROUP, dtype=np.int64)
        for table, parts in zip(self._partitions(), self._parts, strict=True):
            on_threads(partial(self._write_part, table), parts)
        self._parts.clear()

    def sections(self) -> list[tuple[int, int]]:
        """Where sections of the positions begin and end: one for each thread, if there is enough to do."""
        last = self.totals.positions - 1  # a gap, with no pair
        number = self._num_parts(last)
        return [(last * part // number, last * (part + 1) // number) for part in range(number)]

    def _measure(self, min_count: int, max_bytes: int | None) -> WordTotals:
        distinct = words = num_bytes = all_words = 0
        position = self._begin
        for table in self._partitions():
            order = _most_frequent_first(table, min_count)
            parts = []
            for part in np.array_split(order, self._num_parts(len(order))):
                parts.append(_Part(part, position))
                position, more_words, more_bytes = layout.measure(table.words, table.arena, part, position)
                words += more_words
                num_bytes += more_bytes
            if max_bytes is None or BYTES_PER_POSITION * position <= max_bytes:
                self._parts.append(parts)
            else:
                self._parts.clear()
            distinct += len(order)
            all_words += int(table.amounts().sum())
        return WordTotals(distinct, words, num_bytes, position, left_out=all_words - words)

    def _write_part(self, table: WordCounts, part: _Part) -> None:
        layout.lay_out(table.words, table.arena, part.order, part.begin, self.text, self.ids, self.weights)

    def _num_parts(self, items: int) -> int:
        return max(1, min(self._threads, items // _WORTH_A_THREAD))


def on_threads(work: Callable[[_Item], None], items: Sequence[_Item]) -> None:
    """Do some work for each item, on as many threads."""
    for _ in in_order((partial(work, item) for item in items), len(items)):
        pass


def _most_frequent_first(table: WordCounts, min_count: int) -> NDArray[np.int64]:
    """The numbers of the words that are frequent enough, in falling order of their counts."""
    amounts = table.amounts()
    # Numbers of 16 bits are sorted digit by digit, several times faster; few counts do not fit.
    rarity = _MAX_DIGIT - np.minimum(amounts, _MAX_DIGIT).astype(np.uint16)
    order = np.argsort(rarity, kind="stable")
    most = int(np.count_nonzero(rarity == 0))
    order[:most] = order[:most][np.argsort(~amounts[order[:most]], kind="stable")]
    # A copy, since of many words few may be frequent enough.
    return order[: int(np.count_nonzero(amounts >= min_count))].copy()
