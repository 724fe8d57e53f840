"""Pretokens from one table to another, or to disk."""

import numpy as np

from shared.bpe.kernels.pretoken_keys import Key, key_of
from shared.bpe.kernels.pretoken_table import (
    ABSENT,
    BITS,
    ENTRY_SIZE,
    LONG,
    PLACE,
    USED,
    Entries,
    Pretokens,
    Table,
    add,
    first_slot,
    has_room,
    hash_of,
    hash_of_key,
    length_of,
    store,
    stored_length,
)
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import prefetch
from shared.kernels.types import Bytes, Int64Array, Uint8Array, Uint64Array, int64

PREFETCH_DISTANCE = 16  # pretokens


@compiled
def add_pretokens(pretokens: Pretokens, first: int64, slots: Int64Array, table: Table) -> int64:
    """Add the counts of one table, from a pretoken on, to another; returns where it stopped for want of room.

    In batches of as many as `slots` holds, which is filled: memory is requested for all of a batch before it is needed.
    """
    entries, arena = pretokens.entries, pretokens.arena
    last = entries.size // ENTRY_SIZE
    while first < last:
        count = min(slots.size, last - first)
        needed = 0
        for number in range(count):
            slots[number] = first_slot(hash_of(entries, first + number), table.state[BITS])
            prefetch(table.index, slots[number])
            needed += length_of(pretokens, first + number)
        if not has_room(table, count, needed):
            return first
        for number in range(count):
            prefetch(table.entries, np.int64(table.index[slots[number]]) * ENTRY_SIZE)
        for number in range(count):
            place = (first + number) * ENTRY_SIZE
            key, amount = Key(entries[place], entries[place + 1]), entries[place + 2]
            begin = np.int64(key.high & PLACE) + 8
            add(table, slots[number], key, arena, begin, length_of(pretokens, first + number), amount)
        first += count
    return last


@compiled
def fill_index(table: Table) -> None:
    """Enter all pretokens into an index that is empty."""
    index, last = table.index, table.state[USED] - 1
    for number in range(table.state[USED]):
        later = min(number + PREFETCH_DISTANCE, last)
        prefetch(index, first_slot(hash_of(table.entries, later), table.state[BITS]))
        slot = first_slot(hash_of(table.entries, number), table.state[BITS])
        while index[slot] != ABSENT:
            slot = slot + 1 & index.size - 1
        index[slot] = number


@compiled
def add_listed(data: Bytes, ends: Int64Array, amounts: Uint64Array, first: int64, table: Table) -> int64:
    """Add amounts to the counts of pretokens that lie side by side, from `first` on; returns where it stopped."""
    begin = ends[first - 1] if first > 0 else 0
    for pretoken in range(first, ends.size):
        length = ends[pretoken] - begin
        if not has_room(table, 1, length):
            return pretoken
        key = key_of(data, begin, length, LONG)
        add(table, first_slot(hash_of_key(key), table.state[BITS]), key, data, begin, length, amounts[pretoken])
        begin = ends[pretoken]
    return ends.size


@compiled
def hash_all(entries: Entries, hashes: Uint64Array) -> None:
    """The hashes of all pretokens."""
    for number in range(hashes.size):
        hashes[number] = hash_of(entries, number)


@compiled
def count_groups(entries: Entries, bits: int64, counts: Int64Array) -> None:
    """Count the pretokens of each group: those whose hashes have the same top bits."""
    counts[:] = 0
    for number in range(entries.size // ENTRY_SIZE):
        counts[np.int64(hash_of(entries, number) >> np.uint64(64 - bits))] += 1


@compiled
def group(entries: Entries, bits: int64, places: Int64Array, grouped: Uint64Array) -> None:
    """Copy entries, group by group; `places` are the numbers that the next pretoken of each group gets."""
    for number in range(entries.size // ENTRY_SIZE):
        chosen = np.int64(hash_of(entries, number) >> np.uint64(64 - bits))
        source, target = number * ENTRY_SIZE, places[chosen] * ENTRY_SIZE
        for word in range(ENTRY_SIZE):
            grouped[target + word] = entries[source + word]
        places[chosen] += 1


@compiled
def arena_needed(pretokens: Pretokens, chosen: Int64Array) -> int64:
    """The bytes of arena that some pretokens take."""
    needed = 0
    for number in chosen:
        if pretokens.entries[number * ENTRY_SIZE + 1] >= LONG:
            needed += 8 + (length_of(pretokens, number) + 7 & ~7)
    return needed


@compiled
def gather(pretokens: Pretokens, chosen: Int64Array, entries: Uint64Array, arena: Uint8Array) -> None:
    """Copy some pretokens, in order, to arrays of just their size."""
    used = 0
    for number in range(chosen.size):
        source, target = chosen[number] * ENTRY_SIZE, number * ENTRY_SIZE
        high = pretokens.entries[source + 1]
        if high >= LONG:
            place = np.int64(high & PLACE)
            high = LONG | np.uint64(used)
            used = store(arena, used, pretokens.arena, place + 8, stored_length(pretokens.arena, place))
        entries[target] = pretokens.entries[source]
        entries[target + 1] = high
        entries[target + 2] = pretokens.entries[source + 2]
