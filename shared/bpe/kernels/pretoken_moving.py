"""Pretokens from one table to another, or to disk."""

import numpy as np

from shared.bpe.kernels.pretoken_table import (
    ABSENT,
    ARENA,
    ARENA_USED,
    BITS,
    ENTRIES,
    ENTRY_SIZE,
    LONG,
    LONGEST_SHORT,
    PLACE,
    USED,
    add_long,
    add_short,
    first_slot,
    has_room,
    hash_bytes,
    hash_of,
    hash_words,
    length_of,
    short_key,
    store,
    stored_length,
)
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import prefetch
from shared.kernels.types import BYTES, INT32S, INT64S, UINT64S

PREFETCH_DISTANCE = 16  # pretokens


@compiled(types.int64, ENTRIES, BYTES, types.int64, INT32S, UINT64S, INT64S, ARENA)
def add_entries(from_entries, from_arena, first, index, entries, state, arena):
    """Add the counts of one table, from a pretoken on, to another; returns where it stopped for want of room."""
    last = from_entries.size // ENTRY_SIZE
    for number in range(first, last):
        later = min(number + 2 * PREFETCH_DISTANCE, last - 1)
        prefetch(index, first_slot(hash_of(from_entries, later), state[BITS]))
        soon = min(number + PREFETCH_DISTANCE, last - 1)
        prefetch(entries, np.int64(index[first_slot(hash_of(from_entries, soon), state[BITS])]) * ENTRY_SIZE)
        place = number * ENTRY_SIZE
        low, high, count = from_entries[place], from_entries[place + 1], from_entries[place + 2]
        slot = first_slot(hash_of(from_entries, number), state[BITS])
        length = length_of(from_entries, from_arena, number)
        if not has_room(state, arena, 1, length):
            return number
        if high < LONG:
            add_short(index, entries, state, slot, low, high, count)
        else:
            begin = np.int64(high & PLACE) + 8
            add_long(index, entries, state, arena, slot, low, from_arena, begin, length, count)
    return last


@compiled(types.void, ENTRIES, INT32S, INT64S)
def fill_index(entries, index, state):
    """Enter all pretokens into an index that is empty."""
    mask = (1 << state[BITS]) - 1
    for number in range(state[USED]):
        later = min(number + PREFETCH_DISTANCE, state[USED] - 1)
        prefetch(index, first_slot(hash_of(entries, later), state[BITS]))
        slot = first_slot(hash_of(entries, number), state[BITS])
        while index[slot] != ABSENT:
            slot = slot + 1 & mask
        index[slot] = number


@compiled(types.int64, BYTES, INT64S, UINT64S, types.int64, INT32S, UINT64S, INT64S, ARENA)
def add_listed(data, ends, amounts, first, index, entries, state, arena):
    """Add amounts to the counts of pretokens that lie side by side, from `first` on; returns where it stopped."""
    begin = ends[first - 1] if first > 0 else 0
    for pretoken in range(first, ends.size):
        length = ends[pretoken] - begin
        if not has_room(state, arena, 1, length):
            return pretoken
        if length <= LONGEST_SHORT:
            low, high = short_key(data, begin, length)
            slot = first_slot(hash_words(low, high), state[BITS])
            add_short(index, entries, state, slot, low, high, amounts[pretoken])
        else:
            hashed = hash_bytes(data, begin, length)
            slot = first_slot(hashed, state[BITS])
            add_long(index, entries, state, arena, slot, hashed, data, begin, length, amounts[pretoken])
        begin = ends[pretoken]
    return ends.size


@compiled(types.void, ENTRIES, UINT64S)
def hash_all(entries, hashes):
    """The hashes of all pretokens."""
    for number in range(hashes.size):
        hashes[number] = hash_of(entries, number)


@compiled(types.int64, ENTRIES, BYTES, INT64S)
def arena_needed(entries, arena, chosen):
    """The bytes of arena that some pretokens take."""
    needed = 0
    for number in chosen:
        if entries[number * ENTRY_SIZE + 1] >= LONG:
            needed += 8 + (length_of(entries, arena, number) + 7 & ~7)
    return needed


@compiled(types.void, ENTRIES, BYTES, INT64S, UINT64S, ARENA, INT64S)
def gather(entries, arena, chosen, to_entries, to_arena, state):
    """Copy some pretokens to arrays of just their size, in order."""
    state[ARENA_USED] = 0
    for number in range(chosen.size):
        source, target = chosen[number] * ENTRY_SIZE, number * ENTRY_SIZE
        high = entries[source + 1]
        if high >= LONG:
            place = np.int64(high & PLACE)
            high = LONG | np.uint64(store(to_arena, state, arena, place + 8, stored_length(arena, place)))
        to_entries[target] = entries[source]
        to_entries[target + 1] = high
        to_entries[target + 2] = entries[source + 2]
