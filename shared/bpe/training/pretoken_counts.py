"""Distinct pretokens and how often they occur: the compiled hash table as an object that grows."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from shared.bpe.kernels import pretoken_counting, pretoken_moving
from shared.bpe.kernels import pretoken_table as kernel
from shared.bpe.kernels.classes import character_classes
from shared.bpe.kernels.scanner import PATTERN_IDS
from shared.bpe.training.corpus import Bytes, Specials

_FIRST_BITS = 16  # 2**16 slots of the index
_FIRST_ARENA = 1 << 20  # bytes
_BATCH = 256  # pretokens that are prepared together


class PretokenCounts:
    """Counts of distinct pretokens. One thread may use it at a time; counting releases the GIL.

    Args:
        max_bytes: Memory that it may take, including while it grows. None for no limit.
    """

    def __init__(self, max_bytes: int | None = None):
        self.max_bytes = max_bytes
        self._make_arrays()
        self._cuts = np.empty(_BATCH, dtype=np.int64)
        self._keys = np.empty(pretoken_counting.KEY_SIZE * _BATCH, dtype=np.uint64)

    @classmethod
    def from_mapping(cls, counts: Mapping[bytes, int]) -> "PretokenCounts":
        """A table with these counts."""
        table = cls()
        for _ in table.add_mapping(counts):
            pass  # without a limit it never fills
        return table

    def add_mapping(self, counts: Mapping[bytes, int]) -> Iterator[int]:
        """Add counts; yields the length of a pretoken that exceeds `max_bytes`, until the caller has made room."""
        pretokens = [pretoken for pretoken in counts if pretoken]
        data = np.frombuffer(b"".join(pretokens) or b"\0", dtype=np.uint8)
        ends = np.cumsum([len(pretoken) for pretoken in pretokens], dtype=np.int64)
        amounts = np.array([counts[pretoken] for pretoken in pretokens], dtype=np.uint64)
        first = 0
        while first < len(pretokens):
            first = pretoken_moving.add_listed(
                data, ends, amounts, first, self._index, self._entries, self._state, self.arena
            )
            if first < len(pretokens) and not self._grow(len(pretokens[first])):
                yield len(pretokens[first])

    def __len__(self) -> int:
        return int(self._state[kernel.USED])

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._index.nbytes + self._entries.nbytes + self.arena.nbytes

    @property
    def entries(self) -> NDArray[np.uint64]:
        """All pretokens, three numbers each; see `kernels.pretoken_table`."""
        return self._entries[: kernel.ENTRY_SIZE * len(self)]

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
        while begin < end:
            begin = pretoken_counting.count_chunk(
                PATTERN_IDS[pattern], data, begin, end, character_classes(), specials.text, specials.offsets,
                self._cuts, self._keys, self._index, self._entries, self._state, self.arena,
            )  # fmt: skip
            # At worst, the batch that did not fit is a single pretoken up to the end.
            if begin < end and not self._grow():
                break
        return begin

    def add(self, entries: NDArray[np.uint64], arena: Bytes) -> None:
        """Add all counts of another table, given by its arrays."""
        first, last = 0, len(entries) // kernel.ENTRY_SIZE
        while first < last:
            first = pretoken_moving.add_entries(
                entries, arena, first, self._index, self._entries, self._state, self.arena
            )
            if first < last:
                self._grow(len(arena))

    def reserve(self, num_pretokens: int) -> None:
        """Make room for this many pretokens at once."""
        while num_pretokens > self._capacity:
            self._grow_index()

    def clear(self) -> None:
        """Remove all pretokens."""
        self._make_arrays()

    def amounts(self) -> NDArray[np.uint64]:
        """The counts of all pretokens."""
        return self.entries[2 :: kernel.ENTRY_SIZE]

    def max_pretoken_bytes(self) -> int:
        """The bytes of the longest pretoken; 0 if none exceeds `kernels.pretoken_table.LONGEST_SHORT`."""
        tags = self.entries[1 :: kernel.ENTRY_SIZE]
        places = tags[tags >= kernel.LONG] & kernel.PLACE
        lengths = self.arena[: len(self.arena) & ~7].view(np.uint64)[places >> np.uint64(3)]
        return int(lengths.max(initial=0))

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Pretokens with their counts, in no particular order."""
        for number in range(len(self)):
            low, high, count = self._entries[number * kernel.ENTRY_SIZE :][: kernel.ENTRY_SIZE].tolist()
            if high < int(kernel.LONG):
                yield (low | (high & (1 << 56) - 1) << 64).to_bytes(16, "little")[: high >> 56], count
            else:
                place = high & int(kernel.PLACE)
                length = int.from_bytes(self.arena[place : place + 8].tobytes(), "little")
                yield self.arena[place + 8 : place + 8 + length].tobytes(), count

    @property
    def _capacity(self) -> int:
        return len(self._index) // 2

    def _make_arrays(self) -> None:
        self._index = _empty_index(_FIRST_BITS)
        self._entries = np.empty(kernel.ENTRY_SIZE * self._capacity, dtype=np.uint64)
        self.arena: Bytes = np.empty(_FIRST_ARENA, dtype=np.uint8)
        self._state = np.array([_FIRST_BITS, 0, 0], dtype=np.int64)

    def _grow(self, length: int = 0) -> bool:
        """Make room for more pretokens, or for one of this length; returns False if that would exceed `max_bytes`."""
        if len(self) + _BATCH > self._capacity:
            if self._may_take(2 * (self._index.nbytes + self._entries.nbytes)):
                self._grow_index()
                return True
            return False
        size = max(2 * len(self.arena), len(self.arena) + length + 64)
        if not self._may_take(size):
            return False
        grown = np.empty(size, dtype=np.uint8)
        used = int(self._state[kernel.ARENA_USED])
        grown[:used] = self.arena[:used]
        self.arena = grown
        return True

    def _may_take(self, more: int) -> bool:
        return self.max_bytes is None or self.nbytes + more <= self.max_bytes

    def _grow_index(self) -> None:
        self._state[kernel.BITS] += 1
        self._index = _empty_index(int(self._state[kernel.BITS]))
        grown = np.empty(kernel.ENTRY_SIZE * self._capacity, dtype=np.uint64)
        grown[: len(self.entries)] = self.entries
        self._entries = grown
        pretoken_moving.fill_index(self._entries, self._index, self._state)


def _empty_index(bits: int) -> NDArray[np.int32]:
    return np.full(1 << bits, kernel.ABSENT, dtype=np.int32)
