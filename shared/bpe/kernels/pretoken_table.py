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

import numpy as np

from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import load_word
from shared.kernels.types import BYTES, INT32S, INT64S, UINT64S

ENTRY_SIZE = 3
LONGEST_SHORT = 15
BUCKET_BITS = 8

ABSENT = -1

# Indices into the state of a table.
BITS, USED, ARENA_USED = 0, 1, 2

ARENA = types.Array(types.uint8)
ENTRIES = types.Array(types.uint64, readonly=True)
_KEY = types.UniTuple(types.uint64, ("low", "high"))

LONG = np.uint64(255 << 56)
PLACE = np.uint64((1 << 56) - 1)
_NONE = np.uint64(0)
_ONE = np.uint64(1)
_MIX_LOW = np.uint64(0x9E3779B97F4A7C15)
_MIX_HIGH = np.uint64(0xC2B2AE3D27D4EB4F)


@compiled(types.uint64, types.uint64, types.uint64, inline=True)
def hash_words(low, high):
    """A hash whose top bits depend on all bits of both words."""
    mixed = (low ^ (low >> 32)) * _MIX_LOW + high * _MIX_HIGH
    return (mixed ^ (mixed >> 29)) * _MIX_LOW


@compiled(types.int64, types.uint64, types.int64, inline=True)
def first_slot(hashed, bits):
    """Where a key with a hash looks first, in an index of 2**bits slots."""
    return np.int64((hashed << np.uint64(BUCKET_BITS)) >> np.uint64(64 - bits))


@compiled(types.uint64, BYTES, types.int64, types.int64)
def hash_bytes(data, begin, length):
    """A hash of a longer pretoken."""
    mixed = np.uint64(length)
    whole = length & ~7
    for offset in range(0, whole, 8):
        mixed = hash_words(mixed, load_word(data, begin + offset))
    tail = _NONE
    for offset in range(whole, length):
        tail = tail << 8 | np.uint64(data[begin + offset])
    return hash_words(mixed, tail)


@compiled(_KEY, BYTES, types.int64, types.int64, inline=True)
def short_key(data, begin, length):
    """The key of a pretoken of up to LONGEST_SHORT bytes."""
    tag = np.uint64(length) << 56
    if begin + 16 <= data.size:
        # Without a branch on the length, which is unpredictable.
        low_bits, high_bits = 8 * min(length, 8), 8 * max(length - 8, 0)
        low = load_word(data, begin) & (~_NONE >> (64 - low_bits))
        return low, load_word(data, begin + 8) & ((_ONE << high_bits) - _ONE) | tag
    low = high = _NONE
    for offset in range(min(length, 8)):
        low |= np.uint64(data[begin + offset]) << (8 * offset)
    for offset in range(8, length):
        high |= np.uint64(data[begin + offset]) << (8 * offset - 64)
    return low, high | tag


@compiled(types.boolean, BYTES, types.int64, BYTES, types.int64, types.int64, inline=True)
def same_bytes(left, left_begin, right, right_begin, length):
    """Whether two arrays hold the same bytes at two places."""
    whole = length & ~7
    for offset in range(0, whole, 8):
        if load_word(left, left_begin + offset) != load_word(right, right_begin + offset):
            return False
    for offset in range(whole, length):
        if left[left_begin + offset] != right[right_begin + offset]:
            return False
    return True


@compiled(types.int64, BYTES, types.int64, inline=True)
def stored_length(arena, place):
    """The length of the pretoken at a place of the arena."""
    return np.int64(load_word(arena, place))


@compiled(types.int64, ARENA, INT64S, BYTES, types.int64, types.int64, inline=True)
def store(arena, state, data, begin, length):
    """Append a pretoken to the arena, which has room for it, and return its place."""
    place = state[ARENA_USED]
    for offset in range(8):
        arena[place + offset] = np.uint8(length >> (8 * offset))
    for offset in range(length):
        arena[place + 8 + offset] = data[begin + offset]
    state[ARENA_USED] = place + (8 + length + 7 & ~7)
    return place


@compiled(types.void, INT32S, UINT64S, INT64S, types.int64, types.uint64, types.uint64, types.uint64, inline=True)
def append_entry(index, entries, state, slot, low, high, count):
    """Give a new pretoken the next number, and a free slot."""
    number = state[USED]
    state[USED] = number + 1
    index[slot] = number
    entries[number * ENTRY_SIZE] = low
    entries[number * ENTRY_SIZE + 1] = high
    entries[number * ENTRY_SIZE + 2] = count


@compiled(types.void, INT32S, UINT64S, INT64S, types.int64, types.uint64, types.uint64, types.uint64, inline=True)
def add_short(index, entries, state, slot, low, high, amount):
    """Add to the count of a short pretoken, whose search begins at a slot."""
    mask = (1 << state[BITS]) - 1
    while True:
        number = np.int64(index[slot])
        if number == ABSENT:
            append_entry(index, entries, state, slot, low, high, amount)
            return
        place = number * ENTRY_SIZE
        if entries[place + 1] == high and entries[place] == low:
            entries[place + 2] += amount
            return
        slot = slot + 1 & mask


@compiled(
    types.void,
    *(INT32S, UINT64S, INT64S, ARENA, types.int64, types.uint64, BYTES, types.int64, types.int64, types.uint64),
)
def add_long(index, entries, state, arena, slot, hashed, data, begin, length, amount):
    """Add to the count of a long pretoken, whose search begins at a slot; the arena has room for it."""
    mask = (1 << state[BITS]) - 1
    while True:
        number = np.int64(index[slot])
        if number == ABSENT:
            high = LONG | np.uint64(store(arena, state, data, begin, length))
            append_entry(index, entries, state, slot, hashed, high, amount)
            return
        place = number * ENTRY_SIZE
        high = entries[place + 1]
        if entries[place] == hashed and high >= LONG:
            stored = np.int64(high & PLACE)
            if stored_length(arena, stored) == length and same_bytes(arena, stored + 8, data, begin, length):
                entries[place + 2] += amount
                return
        slot = slot + 1 & mask


@compiled(types.boolean, INT64S, BYTES, types.int64, types.int64, inline=True)
def has_room(state, arena, pretokens, length):
    """Whether so many new pretokens of so many bytes in all fit."""
    entries_left = (1 << state[BITS] - 1) - state[USED]
    return pretokens <= entries_left and state[ARENA_USED] + length + 16 * pretokens <= arena.size


@compiled(types.uint64, ENTRIES, types.int64, inline=True)
def hash_of(entries, number):
    """The hash of a pretoken."""
    low, high = entries[number * ENTRY_SIZE], entries[number * ENTRY_SIZE + 1]
    return hash_words(low, high) if high < LONG else low


@compiled(types.int64, ENTRIES, BYTES, types.int64, inline=True)
def length_of(entries, arena, number):
    """The bytes of a pretoken."""
    high = entries[number * ENTRY_SIZE + 1]
    if high < LONG:
        return np.int64(high >> np.uint64(56))
    return stored_length(arena, np.int64(high & PLACE))
