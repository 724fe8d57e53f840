"""Counting the pretokens of a text in a pretoken table.

Pretokens are taken in batches that fit into the cache, each batch in three passes: the first prefetches the
slots, the second the entries, and the third finds both in the cache.
"""

import numpy as np

from shared.bpe.kernels.boundaries import SpecialTokens, find_special
from shared.bpe.kernels.pretoken_keys import Key, key_of
from shared.bpe.kernels.pretoken_table import (
    BITS,
    ENTRY_SIZE,
    LONG,
    Table,
    add,
    first_slot,
    has_room,
    hash_of_key,
)
from shared.bpe.kernels.scanner import Scanner, scan
from shared.kernels.compiling import compiled, inlined
from shared.kernels.intrinsics import prefetch
from shared.kernels.types import Bytes, Int64Array, Uint64Array, int64

KEY_SIZE = 3  # low, high and slot of a pretoken

_ONE = np.uint64(1)


@inlined
def prepare_keys(data: Bytes, begin: int64, cuts: Int64Array, count: int64, keys: Uint64Array, table: Table) -> None:
    """Write the keys of pretokens side by side, and request the memory of their slots."""
    for pretoken in range(count):
        end = cuts[pretoken]
        key = key_of(data, begin, end - begin, LONG)
        slot = first_slot(hash_of_key(key), table.state[BITS])
        keys[KEY_SIZE * pretoken] = key.low
        keys[KEY_SIZE * pretoken + 1] = key.high
        keys[KEY_SIZE * pretoken + 2] = np.uint64(slot)
        prefetch(table.index, slot)
        begin = end


@inlined
def prefetch_entries(count: int64, keys: Uint64Array, table: Table) -> None:
    """Request the memory of the entries that prepared pretokens will most likely have."""
    for pretoken in range(count):
        slot = np.int64(keys[KEY_SIZE * pretoken + 2])
        prefetch(table.entries, np.int64(table.index[slot]) * ENTRY_SIZE)


@inlined
def add_prepared(data: Bytes, begin: int64, cuts: Int64Array, count: int64, keys: Uint64Array, table: Table) -> None:
    """Count each of the prepared pretokens once."""
    for pretoken in range(count):
        end = cuts[pretoken]
        key = Key(keys[KEY_SIZE * pretoken], keys[KEY_SIZE * pretoken + 1])
        add(table, np.int64(keys[KEY_SIZE * pretoken + 2]), key, data, begin, end - begin, _ONE)
        begin = end


@compiled
def count_text(scanner: Scanner, data: Bytes, begin: int64, end: int64, keys: Uint64Array, table: Table) -> int64:
    """Count the pretokens of `data[begin:end]`; returns where it stopped, before `end` if the table must grow first."""
    cuts = scanner.cuts
    while begin < end:
        count = scan(scanner, data, begin, end)
        reached = cuts[count - 1]
        if not has_room(table, count, reached - begin):
            return begin
        prepare_keys(data, begin, cuts, count, keys, table)
        prefetch_entries(count, keys, table)
        add_prepared(data, begin, cuts, count, keys, table)
        begin = reached
    return begin


@compiled
def count_chunk(
    scanner: Scanner, data: Bytes, begin: int64, end: int64, specials: SpecialTokens, keys: Uint64Array, table: Table
) -> int64:
    """`count_text` between the special tokens of `data[begin:end]`, which are not counted."""
    while begin < end:
        special, length = find_special(data, begin, end, specials)
        begin = count_text(scanner, data, begin, special, keys, table)
        if begin < special:
            return begin
        begin += length
    return begin
