"""Distinct words and how often they occur: the compiled word table as an object that grows."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from shared.bpe.kernels import word_table as kernel
from shared.bpe.kernels.classes import character_classes
from shared.bpe.kernels.scanner import PATTERN_IDS

Bytes = NDArray[np.uint8]

_FIRST_BITS = 16
_FIRST_ARENA = 1 << 20
_BATCH = 512  # pieces that are prepared together


class Specials:
    """Special tokens as the kernels take them."""

    def __init__(self, spellings: Iterable[bytes] = ()):
        ordered = sorted(spellings, key=lambda spelling: (spelling[0], -len(spelling)))
        self.text: Bytes = np.frombuffer(b"".join(ordered) or b"\0", dtype=np.uint8)
        self.offsets = np.cumsum([0, *map(len, ordered)], dtype=np.int64)


class WordCounts:
    """Counts of distinct words. One thread may use it at a time; counting releases the interpreter lock.

    Args:
        max_bytes: Memory that it may take, while it grows too. None for as much as it needs.
    """

    def __init__(self, max_bytes: int | None = None):
        self.max_bytes = max_bytes
        self._make_arrays()
        self._cuts = np.empty(_BATCH, dtype=np.int64)
        self._keys = np.empty(2 * _BATCH, dtype=np.uint64)

    @classmethod
    def from_mapping(cls, counts: Mapping[bytes, int]) -> "WordCounts":
        """The same counts as a table."""
        table = cls()
        words = [word for word in counts if word]
        data = np.frombuffer(b"".join(words) or b"\0", dtype=np.uint8)
        ends = np.cumsum([len(word) for word in words], dtype=np.int64)
        amounts = np.array([counts[word] for word in words], dtype=np.uint64)
        first = 0
        while first < len(words):
            first = kernel.add_listed(data, ends, amounts, first, table.slots, table._state, table.arena)
            if first < len(words):
                table._grow(len(words[first]))
        return table

    def __len__(self) -> int:
        return int(self._state[kernel.USED])

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.slots.nbytes + self.arena.nbytes

    def count_chunk(self, pattern: str, data: Bytes, begin: int, end: int, specials: Specials) -> int:
        """Count the pieces of `data[begin:end]`, valid UTF-8, between special tokens.

        Args:
            pattern: The name of a pattern.
            data: The bytes.
            begin: Where the chunk begins.
            end: Where it ends. Nothing beyond is looked at.
            specials: Byte strings that are not counted, and that no piece crosses.

        Returns:
            `end`, or where a piece begins for which `max_bytes` leave no room.
        """
        while begin < end:
            begin = kernel.count_chunk(
                PATTERN_IDS[pattern], data, begin, end, character_classes(), specials.text, specials.offsets,
                self._cuts, self._keys, self.slots, self._state, self.arena,
            )  # fmt: skip
            # At worst the batch that found no room is one piece up to the end.
            if begin < end and not self._grow():
                break
        return begin

    def add(self, slots: NDArray[np.uint64], arena: Bytes) -> None:
        """Add all counts of another table, given by its arrays."""
        first, last = 0, len(slots) // kernel.SLOT_WORDS
        while len(self.slots) < len(slots):
            self._grow_slots()
        while first < last:
            first = kernel.add_slots(slots, arena, first, last, self.slots, self._state, self.arena)
            if first < last:
                self._grow(len(arena))

    def reserve(self, num_words: int) -> None:
        """Make room for so many words at once."""
        while num_words > len(self.slots) // kernel.SLOT_WORDS // 2:
            self._grow_slots()

    def clear(self) -> None:
        """Forget all words."""
        self._make_arrays()

    def amounts(self) -> NDArray[np.uint64]:
        """The counts by slot, 0 where a slot is empty."""
        return self.slots[2 :: kernel.SLOT_WORDS]

    def chosen(self, min_count: int = 1) -> NDArray[np.int64]:
        """The slots of words that occur at least so often."""
        return np.flatnonzero(self.amounts() >= min_count)

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Words with their counts, in no particular order."""
        for slot in self.chosen().tolist():
            low, high, count = self.slots[slot * kernel.SLOT_WORDS :][: kernel.SLOT_WORDS].tolist()
            if high < int(kernel.LONG):
                yield (low | (high & (1 << 56) - 1) << 64).to_bytes(16, "little")[: high >> 56], count
            else:
                place = high & int(kernel.PLACE)
                length = int.from_bytes(self.arena[place : place + 8].tobytes(), "little")
                yield self.arena[place + 8 : place + 8 + length].tobytes(), count

    def _make_arrays(self) -> None:
        self.slots = _zeros(kernel.SLOT_WORDS << _FIRST_BITS)
        self.arena: Bytes = np.empty(_FIRST_ARENA, dtype=np.uint8)
        self._state = np.array([_FIRST_BITS, 0, 0], dtype=np.int64)

    def _grow(self, length: int = 0) -> bool:
        """Make room for more slots, or for a word of some length; returns False if `max_bytes` forbid it."""
        bits = int(self._state[kernel.BITS])
        if 2 * len(self) > (1 << bits) - 4 * _BATCH:
            if self._may_take(2 * self.slots.nbytes):
                self._grow_slots()
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

    def _grow_slots(self) -> None:
        slots = _zeros(2 * len(self.slots))
        self._state[kernel.BITS] += 1
        kernel.move_slots(self.slots, slots, self._state)
        self.slots = slots


def _zeros(size: int) -> NDArray[np.uint64]:
    """Zeros in memory that is there already, in huge pages where the system gives them."""
    words = np.empty(size, dtype=np.uint64)
    words.fill(0)
    return words
