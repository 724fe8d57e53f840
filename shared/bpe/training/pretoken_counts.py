"""Distinct pretokens and how often they occur: the compiled hash table as an object that grows."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from shared.bpe.kernels import pretoken_counting, pretoken_moving
from shared.bpe.kernels import pretoken_table as kernel
from shared.bpe.kernels.classes import character_classes
from shared.bpe.kernels.scanner import PATTERN_IDS, Scanner
from shared.bpe.training.corpus import Bytes, Specials

_FIRST_BITS = 16  # 2**16 slots of the index
_FIRST_ARENA = 1 << 20  # bytes
_GROUP_BITS = 4
GROUPS = 1 << _GROUP_BITS
_BATCH = 256  # pretokens that are prepared together


class PretokenCounts:
    """Counts of distinct pretokens. One thread may use it at a time; counting releases the GIL.

    Args:
        max_bytes: Memory that it may take, including while it grows. None for no limit.
    """

    def __init__(self, max_bytes: int | None = None):
        self.max_bytes = max_bytes
        self.clear()
        self._cuts = np.empty(_BATCH, dtype=np.int64)
        self._keys = np.empty(pretoken_counting.KEY_SIZE * _BATCH, dtype=np.uint64)

    def add_mapping(self, counts: Mapping[bytes, int]) -> Iterator[int]:
        """Add counts; yields the length of a pretoken that exceeds `max_bytes`, until the caller has made room."""
        pretokens = [pretoken for pretoken in counts if pretoken]
        data = np.frombuffer(b"".join(pretokens) or b"\0", dtype=np.uint8)
        ends = np.cumsum([len(pretoken) for pretoken in pretokens], dtype=np.int64)
        amounts = np.array([counts[pretoken] for pretoken in pretokens], dtype=np.uint64)
        first = 0
        while first < len(pretokens):
            first = pretoken_moving.add_listed(data, ends, amounts, first, self._table)
            if first < len(pretokens) and not self._grow(len(pretokens[first])):
                yield len(pretokens[first])

    def __len__(self) -> int:
        return int(self._table.state[kernel.USED])

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(array.nbytes for array in self._table)

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena in use."""
        return int(self._table.state[kernel.ARENA_USED])

    @property
    def pretokens(self) -> kernel.Pretokens:
        """All pretokens; see `kernels.pretoken_table`."""
        return kernel.Pretokens(self._table.entries[: kernel.ENTRY_SIZE * len(self)], self._table.arena)

    def count_chunk(self, pattern: str, data: Bytes, begin: int, end: int, specials: Specials) -> int:
        """Count the pretokens of `data[begin:end]`, valid UTF-8, between special tokens.

        Args:
            pattern: The name of a pattern.
            data: The bytes.
            begin: Where the chunk begins.
            end: Where it ends. Nothing beyond it is read.
            specials: Byte strings that are not counted and that no pretoken spans.

        Returns:
            `end`, or the start of a pretoken that exceeds `max_bytes`.
        """
        scanner = Scanner(PATTERN_IDS[pattern], character_classes(), np.empty(0, np.uint8), self._cuts)
        while begin < end:
            begin = pretoken_counting.count_chunk(scanner, data, begin, end, specials.arrays, self._keys, self._table)
            # At worst, the batch that did not fit is a single pretoken up to the end.
            if begin < end and not self._grow():
                break
        return begin

    def add(self, pretokens: kernel.Pretokens) -> None:
        """Add all counts of another table."""
        first, last = 0, len(pretokens.entries) // kernel.ENTRY_SIZE
        self.reserve(last)
        while first < last:
            first = pretoken_moving.add_pretokens(pretokens, first, self._cuts, self._table)
            if first < last:
                self._grow(len(pretokens.arena))

    def grouped(self) -> tuple[kernel.Pretokens, NDArray[np.int64]]:
        """All pretokens in GROUPS groups by their hashes, and the number of the first one of each, and of the end."""
        entries, arena = self.pretokens
        counts, grouped = np.empty(GROUPS, dtype=np.int64), np.empty_like(entries)
        pretoken_moving.count_groups(entries, _GROUP_BITS, counts)
        edges = np.concatenate([[0], np.cumsum(counts)])
        pretoken_moving.group(entries, _GROUP_BITS, edges[:-1].copy(), grouped)
        return kernel.Pretokens(grouped, arena[: max(8, self.arena_bytes)]), edges

    def reserve(self, num_pretokens: int) -> None:
        """Make room for this many pretokens at once."""
        if num_pretokens > self._capacity:
            self._grow_index((2 * num_pretokens - 1).bit_length())

    def clear(self) -> None:
        """Remove all pretokens."""
        index = _empty_index(_FIRST_BITS)
        self._table = kernel.Table(
            index,
            entries=np.empty(kernel.ENTRY_SIZE * len(index) // 2, dtype=np.uint64),
            state=np.array([_FIRST_BITS, 0, 0], dtype=np.int64),
            arena=np.empty(_FIRST_ARENA, dtype=np.uint8),
        )

    def amounts(self) -> NDArray[np.uint64]:
        """The counts of all pretokens."""
        return self.pretokens.entries[2 :: kernel.ENTRY_SIZE]

    def max_pretoken_bytes(self) -> int:
        """The bytes of the longest pretoken; 0 if none exceeds `kernels.pretoken_keys.SHORT_BYTES`."""
        entries, arena = self.pretokens
        tags = entries[1 :: kernel.ENTRY_SIZE]
        places = tags[tags >= kernel.LONG] & kernel.PLACE
        lengths = arena[: len(arena) & ~7].view(np.uint64)[places >> np.uint64(3)]
        return int(lengths.max(initial=0))

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Pretokens with their counts, in no particular order."""
        entries, arena = self.pretokens
        for number in range(len(self)):
            low, high, count = entries[number * kernel.ENTRY_SIZE :][: kernel.ENTRY_SIZE].tolist()
            if high < int(kernel.LONG):
                yield (low | (high & (1 << 56) - 1) << 64).to_bytes(16, "little")[: high >> 56], count
            else:
                place = high & int(kernel.PLACE)
                length = int.from_bytes(arena[place : place + 8].tobytes(), "little")
                yield arena[place + 8 : place + 8 + length].tobytes(), count

    @property
    def _capacity(self) -> int:
        return len(self._table.index) // 2

    def _grow(self, length: int = 0) -> bool:
        """Make room for more pretokens, or for one of this length; returns False if that would exceed `max_bytes`."""
        table = self._table
        if len(self) + _BATCH > self._capacity:
            if self._may_take(2 * (table.index.nbytes + table.entries.nbytes)):
                self._grow_index(int(table.state[kernel.BITS]) + 1)
                return True
            return False
        size = max(2 * len(table.arena), len(table.arena) + length + 64)
        if not self._may_take(size):
            return False
        grown = np.empty(size, dtype=np.uint8)
        used = self.arena_bytes
        grown[:used] = table.arena[:used]
        self._table = table._replace(arena=grown)
        return True

    def _may_take(self, more: int) -> bool:
        return self.max_bytes is None or self.nbytes + more <= self.max_bytes

    def _grow_index(self, bits: int) -> None:
        entries = self.pretokens.entries
        self._table.state[kernel.BITS] = bits
        index = _empty_index(bits)
        grown = np.empty(kernel.ENTRY_SIZE * len(index) // 2, dtype=np.uint64)
        grown[: len(entries)] = entries
        self._table = self._table._replace(index=index, entries=grown)
        pretoken_moving.fill_index(self._table)


def _empty_index(bits: int) -> NDArray[np.int32]:
    return np.full(1 << bits, kernel.ABSENT, dtype=np.int32)
