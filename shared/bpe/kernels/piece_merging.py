"""Merging one piece by ranks: always the pair of lowest rank, and of equal ranks the leftmost.

A token stays at the place of its first byte, and what it absorbs leaves holes:

    place       0    1    2    3    4    5
    piece       t    h    e    r    e    s
    ids         th   .    e    re   .    s          (after two merges)
    alive       1    0    1    1    0    1          one bit a place, for pieces of up to 64 bytes
    candidates  rank of (th, e), 0   .   rank of (e, re), 2   ...       rank and place in one number: the least is next

Short pieces find the least candidate by looking at all of them, many at a time; long ones keep them in a heap, which
may hold candidates that are no longer true. So the time is n log n at worst, whatever the text.
"""

import numpy as np
import numpy.typing as npt

from shared.bpe.kernels.compiling import compiled
from shared.bpe.kernels.intrinsics import allocate_like, leading_zeros, release, trailing_zeros
from shared.bpe.kernels.tables import NO_RANK, TABLES, Tables, rank_of_pair
from shared.bpe.kernels.types import BYTES, UINT32S, UINT64S, int64, uint32, uint64

# The longest piece whose places fit one word.
SHORT = 64
# The longest of all, since places in the heap have 32 bits.
MAX_LENGTH = (1 << 32) - 1
NO_MEMORY = -1

_NONE = NO_RANK
_PLACE_BITS = np.uint32(6)
_PLACE_MASK = np.uint32(SHORT - 1)
_LANES = 16
_ONE = np.uint64(1)
_HIGH = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@compiled(uint32, TABLES, uint32, uint32, int64, inline=True)
def _candidate(tables: Tables, left: np.uint32, right: np.uint32, place: int) -> np.uint32:
    rank = rank_of_pair(tables, left, right)
    return _NONE if rank == NO_RANK else (rank << _PLACE_BITS) | np.uint32(place)


@compiled(uint32, UINT32S, int64, inline=True)
def _least(candidates: npt.NDArray[np.uint32], count: int) -> np.uint32:
    least = _NONE
    for place in range(count):
        least = min(least, candidates[place])
    return least


@compiled(int64, TABLES, BYTES, int64, int64, UINT32S, UINT32S, UINT32S, int64)
def merge_short(
    tables: Tables,
    text: npt.NDArray[np.uint8],
    start: int,
    length: int,
    ids: npt.NDArray[np.uint32],
    candidates: npt.NDArray[np.uint32],
    out: npt.NDArray[np.uint32],
    filled: int,
) -> int:
    """Write the ids of a piece of at most SHORT bytes to `out[filled:]`; returns where they end.

    `ids` and `candidates` are scratch of SHORT entries.
    """
    lanes = (length + _LANES - 1) // _LANES * _LANES
    for place in range(length):
        ids[place] = tables.byte_ids[text[start + place]]
    for place in range(length - 1):
        candidates[place] = _candidate(tables, ids[place], ids[place + 1], place)
    for place in range(length - 1, lanes):
        candidates[place] = _NONE
    alive = ~np.uint64(0) >> np.uint64(SHORT - length)
    while True:
        least = _least(candidates, lanes)
        if least == _NONE:
            break
        place = np.int64(least & _PLACE_MASK)
        above = alive & ~((np.uint64(2) << np.uint64(place)) - _ONE)
        absorbed = trailing_zeros(above)
        above &= above - _ONE
        alive &= ~(_ONE << np.uint64(absorbed))
        ids[place] = tables.merged[least >> _PLACE_BITS]
        candidates[absorbed] = _NONE
        candidates[place] = _NONE
        if above:
            candidates[place] = _candidate(tables, ids[place], ids[trailing_zeros(above)], place)
        below = alive & ((_ONE << np.uint64(place)) - _ONE)
        if below:
            before = 63 - leading_zeros(below)
            candidates[before] = _candidate(tables, ids[before], ids[place], before)
    while alive:
        out[filled] = ids[trailing_zeros(alive)]
        filled += 1
        alive &= alive - _ONE
    return filled


@compiled(int64, UINT64S, int64, uint64, inline=True)
def _push(heap: npt.NDArray[np.uint64], size: int, entry: np.uint64) -> int:
    """Add an entry to a binary heap, the least on top; returns its new size."""
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if heap[parent] <= entry:
            break
        heap[child] = heap[parent]
        child = parent
    heap[child] = entry
    return size + 1


@compiled(int64, UINT64S, int64, inline=True)
def _pop(heap: npt.NDArray[np.uint64], size: int) -> int:
    """Remove the top of a heap; returns its new size."""
    size -= 1
    entry = heap[size]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if entry <= heap[child]:
            break
        heap[parent] = heap[child]
        parent = child
    heap[parent] = entry
    return size


@compiled(int64, TABLES, BYTES, int64, int64, UINT32S, UINT64S, UINT32S, int64)
def _merge_with_heap(
    tables: Tables,
    text: npt.NDArray[np.uint8],
    start: int,
    length: int,
    scratch: npt.NDArray[np.uint32],
    heap: npt.NDArray[np.uint64],
    out: npt.NDArray[np.uint32],
    filled: int,
) -> int:
    """`merge_long` with memory for it."""
    ids, ranks = scratch[:length], scratch[length : 2 * length]
    following, preceding = scratch[2 * length : 3 * length], scratch[3 * length : 4 * length]
    size = 0
    for place in range(length):
        ids[place] = tables.byte_ids[text[start + place]]
        ranks[place] = NO_RANK
        following[place] = place + 1
        preceding[place] = place - 1  # the first is never asked for its own
    for place in range(length - 1):
        ranks[place] = rank_of_pair(tables, ids[place], ids[place + 1])
        if ranks[place] != NO_RANK:
            size = _push(heap, size, (np.uint64(ranks[place]) << _HIGH) | np.uint64(place))
    while size > 0:
        rank = np.uint32(heap[0] >> _HIGH)
        place = np.int64(heap[0] & _LOW)
        size = _pop(heap, size)
        if ranks[place] != rank:
            continue
        absorbed = np.int64(following[place])
        after = np.int64(following[absorbed])
        ids[place] = tables.merged[rank]
        ranks[absorbed] = NO_RANK
        following[place] = after
        ranks[place] = NO_RANK
        if after < length:
            preceding[after] = place
            ranks[place] = rank_of_pair(tables, ids[place], ids[after])
            if ranks[place] != NO_RANK:
                size = _push(heap, size, (np.uint64(ranks[place]) << _HIGH) | np.uint64(place))
        if place > 0:
            before = np.int64(preceding[place])
            ranks[before] = rank_of_pair(tables, ids[before], ids[place])
            if ranks[before] != NO_RANK:
                size = _push(heap, size, (np.uint64(ranks[before]) << _HIGH) | np.uint64(before))
    place = 0
    while place < length:
        out[filled] = ids[place]
        filled += 1
        place = np.int64(following[place])
    return filled


@compiled(int64, TABLES, BYTES, int64, int64, UINT32S, int64)
def merge_long(
    tables: Tables,
    text: npt.NDArray[np.uint8],
    start: int,
    length: int,
    out: npt.NDArray[np.uint32],
    filled: int,
) -> int:
    """Write the ids of a piece to `out[filled:]`; returns where they end, NO_MEMORY if there is not enough for it.

    It takes 32 bytes for each of the piece, of which there may be MAX_LENGTH.
    """
    if length > MAX_LENGTH:
        return NO_MEMORY
    # Ids, ranks of the pairs that begin at a place (to tell true heap entries from stale ones), and links.
    scratch = allocate_like(out, 4 * length)
    # A merge takes one entry out and puts at most two in, and there are fewer merges than places.
    heap = allocate_like(tables.pair_slots, 2 * length + 2)
    done = NO_MEMORY
    if scratch.size > 0 and heap.size > 0:
        done = _merge_with_heap(tables, text, start, length, scratch, heap, out, filled)
    release(scratch)
    release(heap)
    return done
