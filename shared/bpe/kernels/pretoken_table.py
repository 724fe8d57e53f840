r"""A hash table from pretokens to how often they occur.

    index   | number | ABSENT | number | ...                           2**bits slots, half of them free at least
    entries | low, high, count | low, high, count | ...                three 64-bit numbers a pretoken
    arena   | length, bytes, padding | length, bytes, padding | ...    pretokens of 16 bytes and more

Pretokens are numbered in the order of their first occurrence, so frequent ones, which come early, share cache lines. A
pretoken of up to 15 bytes is its own key: `low` has its first eight bytes, `high` the others and, in the top byte, its
length. Of a longer one `low` is the hash and `high` has 255 in the top byte and below it the place in the arena. The
search for a key begins at the slot that its hash gives without the top BUCKET_BITS: those divide the pretokens on disk
into buckets, and the pretokens of one bucket must not crowd into one part of a table.
"""

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.bpe.kernels.pretoken_keys import LENGTH_SHIFT, Key, hash_words
from shared.kernels.compiling import compiled, inlined
from shared.kernels.intrinsics import load_word
from shared.kernels.types import Array, Bytes, Int32Array, Int64Array, Uint8Array, Uint64Array, boolean, int64, uint64

ENTRY_SIZE = 3
BUCKET_BITS = 8

ABSENT = -1

# Indices into the state of a table.
BITS, USED, ARENA_USED = 0, 1, 2

LONG = np.uint64(255 << 56)
PLACE = np.uint64((1 << 56) - 1)

Entries = Annotated[NDArray[np.uint64], Array(np.dtype("uint64"), readonly=True)]


class Table(NamedTuple):
    """See the module; `state` has the numbers that change."""

    index: Int32Array
    entries: Uint64Array
    state: Int64Array
    arena: Uint8Array


class Pretokens(NamedTuple):
    """The pretokens of a table, to be read."""

    entries: Entries
    arena: Bytes


@inlined
def first_slot(hashed: uint64, bits: int64) -> int64:
    """Where a key with a hash looks first, in an index of 2**bits slots."""
    return np.int64((hashed << np.uint64(BUCKET_BITS)) >> np.uint64(64 - bits))


@inlined
def hash_of_key(key: Key) -> uint64:
    """The hash of a pretoken."""
    return hash_words(key.low, key.high) if key.high < LONG else key.low


@inlined
def same_bytes(left: Bytes, left_begin: int64, right: Bytes, right_begin: int64, length: int64) -> boolean:
    """Whether two arrays hold the same bytes at two places."""
    whole = length & ~7
    for offset in range(0, whole, 8):
        if load_word(left, left_begin + offset) != load_word(right, right_begin + offset):
            return False
    for offset in range(whole, length):
        if left[left_begin + offset] != right[right_begin + offset]:
            return False
    return True


@inlined
def stored_length(arena: Bytes, place: int64) -> int64:
    """The length of the pretoken at a place of the arena."""
    return np.int64(load_word(arena, place))


@inlined
def store(arena: Uint8Array, place: int64, data: Bytes, begin: int64, length: int64) -> int64:
    """Write a pretoken to a place of the arena, and return where the next one goes."""
    for offset in range(8):
        arena[place + offset] = np.uint8(length >> (8 * offset))
    for offset in range(length):
        arena[place + 8 + offset] = data[begin + offset]
    return place + (8 + length + 7 & ~7)


@inlined
def append_entry(table: Table, slot: int64, key: Key, count: uint64) -> None:
    """Give a new pretoken the next number, and a free slot."""
    number = table.state[USED]
    table.state[USED] = number + 1
    table.index[slot] = number
    table.entries[number * ENTRY_SIZE] = key.low
    table.entries[number * ENTRY_SIZE + 1] = key.high
    table.entries[number * ENTRY_SIZE + 2] = count


@inlined
def add_short(table: Table, slot: int64, key: Key, amount: uint64) -> None:
    """Add to the count of a short pretoken, whose search begins at a slot."""
    index, entries = table.index, table.entries
    while True:
        number = np.int64(index[slot])
        if number == ABSENT:
            append_entry(table, slot, key, amount)
            return
        place = number * ENTRY_SIZE
        if entries[place + 1] == key.high and entries[place] == key.low:
            entries[place + 2] += amount
            return
        slot = slot + 1 & index.size - 1


@compiled
def add_long(
    table: Table, slot: int64, hashed: uint64, data: Bytes, begin: int64, length: int64, amount: uint64
) -> None:
    """Add to the count of a long pretoken, whose search begins at a slot; the arena has room for it."""
    index, entries, arena = table.index, table.entries, table.arena
    while True:
        number = np.int64(index[slot])
        if number == ABSENT:
            place = table.state[ARENA_USED]
            append_entry(table, slot, Key(hashed, LONG | np.uint64(place)), amount)
            table.state[ARENA_USED] = store(arena, place, data, begin, length)
            return
        place = number * ENTRY_SIZE
        high = entries[place + 1]
        if entries[place] == hashed and high >= LONG:
            stored = np.int64(high & PLACE)
            if stored_length(arena, stored) == length and same_bytes(arena, stored + 8, data, begin, length):
                entries[place + 2] += amount
                return
        slot = slot + 1 & index.size - 1


@inlined
def add(table: Table, slot: int64, key: Key, data: Bytes, begin: int64, length: int64, amount: uint64) -> None:
    """Add to the count of a pretoken that lies in `data[begin:]`, whose search begins at a slot."""
    if key.high < LONG:
        add_short(table, slot, key, amount)
    else:
        add_long(table, slot, key.low, data, begin, length, amount)


@inlined
def has_room(table: Table, pretokens: int64, length: int64) -> boolean:
    """Whether so many new pretokens of so many bytes in all fit."""
    entries_left = table.index.size // 2 - table.state[USED]
    return pretokens <= entries_left and table.state[ARENA_USED] + length + 16 * pretokens <= table.arena.size


@inlined
def hash_of(entries: Entries, number: int64) -> uint64:
    """The hash of a pretoken."""
    return hash_of_key(Key(entries[number * ENTRY_SIZE], entries[number * ENTRY_SIZE + 1]))


@inlined
def length_of(pretokens: Pretokens, number: int64) -> int64:
    """The bytes of a pretoken."""
    high = pretokens.entries[number * ENTRY_SIZE + 1]
    if high < LONG:
        return np.int64(high >> LENGTH_SHIFT)
    return stored_length(pretokens.arena, np.int64(high & PLACE))
