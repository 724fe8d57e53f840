"""Counting the pretokens of a text in a pretoken table.

Pretokens are taken in batches that fit into the cache, each batch in three passes: the first prefetches the
slots, the second the entries, and the third finds both in the cache.
"""

import numpy as np

from shared.bpe.kernels.boundaries import find_special
from shared.bpe.kernels.pretoken_table import (
    ARENA,
    BITS,
    ENTRY_SIZE,
    LONG,
    LONGEST_SHORT,
    add_long,
    add_short,
    first_slot,
    has_room,
    hash_bytes,
    hash_words,
    short_key,
)
from shared.bpe.kernels.scanner import scan
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import prefetch
from shared.kernels.types import BYTES, INT32S, INT64S, UINT64S

KEY_SIZE = 3  # low, high and slot of a pretoken

_ONE = np.uint64(1)


@compiled(types.void, BYTES, types.int64, INT64S, types.int64, UINT64S, INT32S, INT64S, inline=True)
def prepare_keys(data, begin, cuts, count, keys, index, state):
    """Write the keys of pretokens side by side, and request the memory of their slots."""
    for pretoken in range(count):
        end = cuts[pretoken]
        length = end - begin
        if length <= LONGEST_SHORT:
            low, high = short_key(data, begin, length)
            hashed = hash_words(low, high)
        else:
            low = hashed = hash_bytes(data, begin, length)
            high = LONG
        slot = first_slot(hashed, state[BITS])
        keys[KEY_SIZE * pretoken] = low
        keys[KEY_SIZE * pretoken + 1] = high
        keys[KEY_SIZE * pretoken + 2] = np.uint64(slot)
        prefetch(index, slot)
        begin = end


@compiled(types.void, types.int64, UINT64S, INT32S, UINT64S, inline=True)
def prefetch_entries(count, keys, index, entries):
    """Request the memory of the entries that prepared pretokens will most likely have."""
    for pretoken in range(count):
        prefetch(entries, np.int64(index[np.int64(keys[KEY_SIZE * pretoken + 2])]) * ENTRY_SIZE)


@compiled(types.void, BYTES, types.int64, INT64S, types.int64, UINT64S, INT32S, UINT64S, INT64S, ARENA, inline=True)
def add_prepared(data, begin, cuts, count, keys, index, entries, state, arena):
    """Count each of the prepared pretokens once."""
    for pretoken in range(count):
        end = cuts[pretoken]
        low, high = keys[KEY_SIZE * pretoken], keys[KEY_SIZE * pretoken + 1]
        slot = np.int64(keys[KEY_SIZE * pretoken + 2])
        if high < LONG:
            add_short(index, entries, state, slot, low, high, _ONE)
        else:
            add_long(index, entries, state, arena, slot, low, data, begin, end - begin, _ONE)
        begin = end


@compiled(
    types.int64,
    *(types.int64, BYTES, types.int64, types.int64, BYTES, INT64S, UINT64S, INT32S, UINT64S, INT64S, ARENA),
)
def count_text(pattern, data, begin, end, classes, cuts, keys, index, entries, state, arena):
    """Count the pretokens of `data[begin:end]`; returns where it stopped, before `end` if the table must grow first."""
    while begin < end:
        count = scan(pattern, data, begin, end, classes, cuts)
        reached = cuts[count - 1]
        if not has_room(state, arena, count, reached - begin):
            return begin
        prepare_keys(data, begin, cuts, count, keys, index, state)
        prefetch_entries(count, keys, index, entries)
        add_prepared(data, begin, cuts, count, keys, index, entries, state, arena)
        begin = reached
    return begin


@compiled(
    types.int64,
    *(types.int64, BYTES, types.int64, types.int64, BYTES, BYTES, INT64S),
    *(INT64S, UINT64S, INT32S, UINT64S, INT64S, ARENA),
)
def count_chunk(pattern, data, begin, end, classes, specials, offsets, cuts, keys, index, entries, state, arena):
    """`count_text` between the special tokens of `data[begin:end]`, which are not counted."""
    while begin < end:
        special, length = find_special(data, begin, end, specials, offsets)
        begin = count_text(pattern, data, begin, special, classes, cuts, keys, index, entries, state, arena)
        if begin < special:
            return begin
        begin += length
    return begin
