"""The distinct pretokens of a corpus laid out for merging: see `kernels.layout`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.bpe.kernels import layout
from shared.bpe.training.pretoken_counts import PretokenCounts
from shared.system.thread_pool import in_order

# The distinct pretokens in one table, or in several tables, one after the other, that share no pretoken.
Partitions = Callable[[], Iterator[PretokenCounts]]

_Item = TypeVar("_Item")

# text, ids and weights
BYTES_PER_POSITION = 1 + 4 + 8 / layout.GROUP

_WORTH_A_THREAD = 1 << 16  # pretokens or positions
_MAX_DIGIT = (1 << 16) - 1


@dataclass(frozen=True)
class PretokenTotals:
    """Totals over all pretokens that occur often enough.

    Attributes:
        distinct: Distinct pretokens.
        occurrences: Occurrences of pretokens.
        num_bytes: Bytes of all occurrences.
        positions: Length of the layout, in bytes of text.
        ignored: Occurrences of pretokens below the minimum count, which no other total includes.
    """

    distinct: int
    occurrences: int
    num_bytes: int
    positions: int
    ignored: int


class _Part(NamedTuple):
    """Pretokens of a table, by number, that one thread lays out, and the position of the first."""

    order: NDArray[np.int64]
    begin: int


class PretokenLayout:
    """Pretokens side by side in flat arrays. The constructor measures them, `write` makes the arrays.

    Args:
        partitions: The pretokens; iterated twice, and not kept.
        prefix: Bytes in front of all pretokens, for tokens that no merge may make.
        min_count: Pretokens that occur less often are ignored.
        threads: Number of threads that write.
        max_bytes: Beyond this size, the layout can be measured but not written. None for no limit.

    Attributes:
        totals: Totals over the pretokens.
        arrays: The layout; set by `write`.
    """

    arrays: layout.Layout

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
        self.arrays = layout.Layout(
            text=np.empty(self.totals.positions, dtype=np.uint8),
            ids=np.empty(self.totals.positions, dtype=np.int32),
            weights=np.zeros(self.totals.positions // layout.GROUP, dtype=np.int64),
        )
        self.arrays.text[: len(self._prefix)] = np.frombuffer(self._prefix, dtype=np.uint8)
        self.arrays.ids[: self._begin] = layout.GAP
        for table, parts in zip(self._partitions(), self._parts, strict=True):
            on_threads(partial(self._write_part, table), parts)
        self._parts.clear()

    def sections(self) -> list[tuple[int, int]]:
        """Begin and end of consecutive sections of the positions: one for each thread, if there is enough to do."""
        last = self.totals.positions - 1  # a gap, with no pair
        number = self._num_parts(last)
        return [(last * part // number, last * (part + 1) // number) for part in range(number)]

    def _measure(self, min_count: int, max_bytes: int | None) -> PretokenTotals:
        distinct = occurrences = num_bytes = all_occurrences = 0
        position = self._begin
        for table in self._partitions():
            order = _most_frequent_first(table, min_count)
            parts = []
            for part in np.array_split(order, self._num_parts(len(order))):
                parts.append(_Part(part, position))
                measured = layout.measure(table.pretokens, part, position)
                position = measured.end
                occurrences += measured.occurrences
                num_bytes += measured.num_bytes
            if max_bytes is None or BYTES_PER_POSITION * position <= max_bytes:
                self._parts.append(parts)
            else:
                self._parts.clear()
            distinct += len(order)
            all_occurrences += int(table.amounts().sum())
        return PretokenTotals(distinct, occurrences, num_bytes, position, ignored=all_occurrences - occurrences)

    def _write_part(self, table: PretokenCounts, part: _Part) -> None:
        layout.lay_out(table.pretokens, part.order, part.begin, self.arrays)

    def _num_parts(self, items: int) -> int:
        return max(1, min(self._threads, items // _WORTH_A_THREAD))


def on_threads(work: Callable[[_Item], None], items: Sequence[_Item]) -> None:
    """Call `work` with each item, on as many threads as there are items."""
    for _ in in_order((partial(work, item) for item in items), len(items)):
        pass


def _most_frequent_first(table: PretokenCounts, min_count: int) -> NDArray[np.int64]:
    """The numbers of the pretokens that are frequent enough, by descending count."""
    amounts = table.amounts()
    # NumPy sorts 16-bit numbers by radix sort, several times faster; few counts do not fit.
    rarity = _MAX_DIGIT - np.minimum(amounts, _MAX_DIGIT).astype(np.uint16)
    order = np.argsort(rarity, kind="stable")
    most = int(np.count_nonzero(rarity == 0))
    order[:most] = order[:most][np.argsort(~amounts[order[:most]], kind="stable")]
    # A copy, since only a few of many pretokens may be frequent enough.
    return order[: int(np.count_nonzero(amounts >= min_count))].copy()
