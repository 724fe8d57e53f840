"""Merging one pretoken by ranks: always the pair of lowest rank, and of equal ranks the leftmost.

A token stays at the place of its first byte, and what it absorbs leaves holes:

    place       0    1    2    3    4    5
    pretoken       t    h    e    r    e    s
    ids         th   .    e    re   .    s          (after two merges)
    alive       1    0    1    1    0    1          one bit a place, for pretokens of up to 64 bytes
    candidates  rank of (th, e), 0   .   rank of (e, re), 2   ...       rank and place in one number: the least is next

Short pretokens keep their candidates in registers, and look at all of them to find the least; long ones keep them in a
heap, which may hold candidates that are no longer true. So the time is n log n at worst, whatever the text.
"""

from typing import NamedTuple

import numpy as np

from shared.bpe.kernels.lanes import FEW, MANY, least, load_few, load_many, with_lane, without
from shared.bpe.kernels.tables import NO_ID, NO_RANK, Tables, merged_id, rank_of_pair
from shared.kernels.compiling import compiled, compiled_and_inlined, inlined
from shared.kernels.intrinsics import allocate_like, leading_zeros, release, trailing_zeros
from shared.kernels.types import Bytes, Uint32Array, Uint64Array, int64, uint32, uint64

# The longest pretoken whose places fit one word, with one more at each end.
SHORT = 62
# Numbers of scratch for them.
SCRATCH = MANY
# The longest of all, since places in the heap have 32 bits.
MAX_LENGTH = (1 << 32) - 1
NO_MEMORY = -1

_PLACE_BITS = np.uint32(6)
_PLACE_MASK = np.uint32(63)
# What a rank shifted by places is below; where there is no merge, it is not.
_NO_CANDIDATE = np.uint32(1 << 31)
_ONE = np.uint64(1)
_HIGH = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


class _Merge(NamedTuple):
    """A merge: its place and the one before, their new candidates, the places of outdated ones, and those alive."""

    place: uint64
    before: uint64
    here: uint32
    there: uint32
    outdated: uint64
    alive: uint64


@inlined
def _merge(tables: Tables, ids: Uint32Array, alive: uint64, candidate: uint32) -> _Merge:
    """Merge a candidate, and look up the two that it makes."""
    place = np.uint64(candidate & _PLACE_MASK)
    above = alive & (~_ONE << place)
    absorbed = np.uint64(trailing_zeros(above))
    after = np.uint64(trailing_zeros(above & (above - _ONE)))
    before = np.uint64(63) - np.uint64(leading_zeros(alive & ((_ONE << place) - _ONE)))
    merged = merged_id(tables.merged, candidate >> _PLACE_BITS)
    ids[place] = merged
    here = (rank_of_pair(tables.pair_slots, merged, ids[after]) << _PLACE_BITS) | np.uint32(place)
    there = (rank_of_pair(tables.pair_slots, ids[before], merged) << _PLACE_BITS) | np.uint32(before)
    outdated = _ONE << absorbed | _ONE << place | _ONE << before
    return _Merge(place, before, np.uint32(here), np.uint32(there), outdated, alive & ~(_ONE << absorbed))


@compiled_and_inlined
def merge_short(
    tables: Tables,
    text: Bytes,
    start: int64,
    length: int64,
    ids: Uint32Array,
    candidates: Uint32Array,
    out: Uint32Array,
    filled: int64,
) -> int64:
    """Write the ids of a pretoken of at most SHORT bytes to `out[filled:]`; returns where they end.

    `ids` and `candidates` are scratch of SCRATCH numbers.
    """
    for place in range(FEW if length <= FEW else MANY):
        candidates[place] = NO_RANK
    ids[0] = ids[length + 1] = NO_ID
    left = np.uint64(text[start])
    ids[1] = tables.byte_ids[left]
    for place in range(1, length):
        right = np.uint64(text[start + place])
        ids[place + 1] = tables.byte_ids[right]
        candidates[place] = (tables.byte_ranks[left | (right << np.uint64(8))] << _PLACE_BITS) | np.uint32(place)
        left = right
    alive = ~np.uint64(0) >> np.uint64(SHORT - length)
    if length <= FEW:
        few = load_few(candidates, 0)
        first = least(few)
        while first < _NO_CANDIDATE:
            merge = _merge(tables, ids, alive, first)
            few = without(few, merge.outdated)
            first, alive = min(least(few), merge.here, merge.there), merge.alive
            few = with_lane(with_lane(few, merge.place, merge.here), merge.before, merge.there)
    else:
        many = load_many(candidates, 0)
        first = least(many)
        while first < _NO_CANDIDATE:
            merge = _merge(tables, ids, alive, first)
            many = without(many, merge.outdated)
            first, alive = min(least(many), merge.here, merge.there), merge.alive
            many = with_lane(with_lane(many, merge.place, merge.here), merge.before, merge.there)
    alive ^= _ONE | (_ONE << np.uint64(length + 1))
    while alive:
        out[filled] = ids[trailing_zeros(alive)]
        filled += 1
        alive &= alive - _ONE
    return filled


@inlined
def _push(heap: Uint64Array, size: int64, entry: uint64) -> int64:
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


@inlined
def _pop(heap: Uint64Array, size: int64) -> int64:
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


@compiled
def _merge_with_heap(
    tables: Tables,
    text: Bytes,
    start: int64,
    length: int64,
    scratch: Uint32Array,
    heap: Uint64Array,
    out: Uint32Array,
    filled: int64,
) -> int64:
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
        ranks[place] = rank_of_pair(tables.pair_slots, ids[place], ids[place + 1])
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
        ids[place] = merged_id(tables.merged, rank)
        ranks[absorbed] = NO_RANK
        following[place] = after
        ranks[place] = NO_RANK
        if after < length:
            preceding[after] = place
            ranks[place] = rank_of_pair(tables.pair_slots, ids[place], ids[after])
            if ranks[place] != NO_RANK:
                size = _push(heap, size, (np.uint64(ranks[place]) << _HIGH) | np.uint64(place))
        if place > 0:
            before = np.int64(preceding[place])
            ranks[before] = rank_of_pair(tables.pair_slots, ids[before], ids[place])
            if ranks[before] != NO_RANK:
                size = _push(heap, size, (np.uint64(ranks[before]) << _HIGH) | np.uint64(before))
    place = 0
    while place < length:
        out[filled] = ids[place]
        filled += 1
        place = np.int64(following[place])
    return filled


@compiled
def merge_long(tables: Tables, text: Bytes, start: int64, length: int64, out: Uint32Array, filled: int64) -> int64:
    """Write the ids of a pretoken to `out[filled:]`; returns where they end, NO_MEMORY if there is not enough for it.

    It takes 32 bytes for each of the pretoken, of which there may be MAX_LENGTH.
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
