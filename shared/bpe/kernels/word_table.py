r"""A hash table from pieces of text to how often they occur.

    slots   | low, high, count | low, high, count | 0, 0, 0 | ...        three 64-bit words a slot, 2**bits slots
    arena   | length, bytes, padding | length, bytes, padding | ...      pieces of 16 bytes and more

A piece of up to 15 bytes is its own key: `low` has its first eight bytes, `high` the others and, in the top byte, its
length. Of a longer one `low` is the hash and `high` has 255 in the top byte and below it the place in the arena. `high`
is 0 only in an empty slot. A key looks for its slot from the place on that its hash names, without the top BUCKET_BITS:
by those the words on disk are cut into buckets, and those of one bucket must not crowd into one part of a table.
"""

import numpy as np

from shared.bpe.kernels import types
from shared.bpe.kernels.boundaries import find_special
from shared.bpe.kernels.compiling import compiled
from shared.bpe.kernels.intrinsics import load_word, prefetch
from shared.bpe.kernels.scanner import scan
from shared.bpe.kernels.types import BYTES, INT64S, UINT64S

SLOT_WORDS = 3
LONGEST_SHORT = 15
BUCKET_BITS = 8

# Indices into the state of a table.
BITS, USED, ARENA_USED = 0, 1, 2

_ARENA = types.Array(types.uint8)
_SLOTS = types.Array(types.uint64, readonly=True)
_KEY = types.UniTuple(types.uint64, 2)

_NONE = np.uint64(0)
_ONE = np.uint64(1)
LONG = np.uint64(255 << 56)
PLACE = np.uint64((1 << 56) - 1)
_MIX_LOW = np.uint64(0x9E3779B97F4A7C15)
_MIX_HIGH = np.uint64(0xC2B2AE3D27D4EB4F)


@compiled(types.uint64, types.uint64, types.uint64, inline=True)
def hash_words(low, high):
    """A hash whose top bits depend on all bits of both words."""
    mixed = (low ^ (low >> 32)) * _MIX_LOW + high * _MIX_HIGH
    return (mixed ^ (mixed >> 29)) * _MIX_LOW


@compiled(types.int64, types.uint64, types.int64, inline=True)
def first_slot(hashed, bits):
    """Where a key with a hash looks first, in a table of 2**bits slots."""
    return np.int64((hashed << np.uint64(BUCKET_BITS)) >> np.uint64(64 - bits))


@compiled(types.uint64, BYTES, types.int64, types.int64)
def hash_bytes(data, begin, length):
    """A hash of a longer piece."""
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
    """The key of a piece of up to LONGEST_SHORT bytes."""
    tag = np.uint64(length) << 56
    if begin + 16 <= data.size:
        # Without a branch on the length, which nobody can predict.
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


@compiled(types.int64, _ARENA, types.int64, inline=True)
def stored_length(arena, place):
    """The length of the piece at a place of the arena."""
    return np.int64(load_word(arena, place))


@compiled(types.int64, _ARENA, INT64S, BYTES, types.int64, types.int64, inline=True)
def store(arena, state, data, begin, length):
    """Append a piece to the arena, which has room for it, and return its place."""
    place = state[ARENA_USED]
    for offset in range(8):
        arena[place + offset] = np.uint8(length >> (8 * offset))
    for offset in range(length):
        arena[place + 8 + offset] = data[begin + offset]
    state[ARENA_USED] = place + (8 + length + 7 & ~7)
    return place


@compiled(types.void, UINT64S, INT64S, types.uint64, types.uint64, types.uint64, inline=True)
def add_short(slots, state, low, high, amount):
    """Add to the count of a short piece."""
    slot = first_slot(hash_words(low, high), state[BITS])
    mask = (1 << state[BITS]) - 1
    while True:
        place = slot * SLOT_WORDS
        if slots[place + 1] == high and slots[place] == low:
            slots[place + 2] += amount
            return
        if slots[place + 1] == _NONE:
            slots[place] = low
            slots[place + 1] = high
            slots[place + 2] = amount
            state[USED] += 1
            return
        slot = slot + 1 & mask


@compiled(types.void, UINT64S, INT64S, _ARENA, types.uint64, BYTES, types.int64, types.int64, types.uint64)
def add_long(slots, state, arena, hashed, data, begin, length, amount):
    """Add to the count of a long piece; the arena has room for it."""
    slot = first_slot(hashed, state[BITS])
    mask = (1 << state[BITS]) - 1
    while True:
        place = slot * SLOT_WORDS
        high = slots[place + 1]
        if high == _NONE:
            slots[place] = hashed
            slots[place + 1] = LONG | np.uint64(store(arena, state, data, begin, length))
            slots[place + 2] = amount
            state[USED] += 1
            return
        if slots[place] == hashed and high >= LONG:
            stored = np.int64(high & PLACE)
            if stored_length(arena, stored) == length and same_bytes(arena, stored + 8, data, begin, length):
                slots[place + 2] += amount
                return
        slot = slot + 1 & mask


@compiled(types.boolean, INT64S, BYTES, types.int64, types.int64, inline=True)
def has_room(state, arena, pieces, length):
    """Whether so many new pieces of so many bytes in all fit."""
    slots_left = (5 << state[BITS]) // 8 - state[USED]
    return pieces <= slots_left and state[ARENA_USED] + length + 16 * pieces <= arena.size


@compiled(types.void, BYTES, types.int64, INT64S, types.int64, UINT64S, UINT64S, INT64S, inline=True)
def prepare_keys(data, begin, cuts, count, keys, slots, state):
    """Write the keys of pieces side by side, `low` and `high` in turn, and ask for the memory of their slots."""
    for piece in range(count):
        end = cuts[piece]
        length = end - begin
        if length <= LONGEST_SHORT:
            low, high = short_key(data, begin, length)
            hashed = hash_words(low, high)
        else:
            low = hashed = hash_bytes(data, begin, length)
            high = LONG
        keys[2 * piece] = low
        keys[2 * piece + 1] = high
        prefetch(slots, first_slot(hashed, state[BITS]) * SLOT_WORDS)
        begin = end


@compiled(types.void, BYTES, types.int64, INT64S, types.int64, UINT64S, UINT64S, INT64S, _ARENA, inline=True)
def add_prepared(data, begin, cuts, count, keys, slots, state, arena):
    """Count each of the prepared pieces once."""
    for piece in range(count):
        end = cuts[piece]
        low, high = keys[2 * piece], keys[2 * piece + 1]
        if high < LONG:
            add_short(slots, state, low, high, _ONE)
        else:
            add_long(slots, state, arena, low, data, begin, end - begin, _ONE)
        begin = end


@compiled(types.int64, types.int64, BYTES, types.int64, types.int64, BYTES, INT64S, UINT64S, UINT64S, INT64S, _ARENA)
def count_text(pattern, data, begin, end, classes, cuts, keys, slots, state, arena):
    """Count the pieces of `data[begin:end]` and return where it stopped: before `end` if the table must grow first."""
    while begin < end:
        count = scan(pattern, data, begin, end, classes, cuts)
        reached = cuts[count - 1]
        if not has_room(state, arena, count, reached - begin):
            return begin
        prepare_keys(data, begin, cuts, count, keys, slots, state)
        add_prepared(data, begin, cuts, count, keys, slots, state, arena)
        begin = reached
    return begin


@compiled(
    types.int64,
    *(types.int64, BYTES, types.int64, types.int64, BYTES, BYTES, INT64S, INT64S, UINT64S, UINT64S, INT64S, _ARENA),
)
def count_chunk(pattern, data, begin, end, classes, specials, offsets, cuts, keys, slots, state, arena):
    """`count_text` between the special tokens of `data[begin:end]`, which are not counted."""
    while begin < end:
        special, length = find_special(data, begin, end, specials, offsets)
        begin = count_text(pattern, data, begin, special, classes, cuts, keys, slots, state, arena)
        if begin < special:
            return begin
        begin += length
    return begin


@compiled(types.int64, _SLOTS, BYTES, types.int64, types.int64, UINT64S, INT64S, _ARENA)
def add_slots(from_slots, from_arena, first, last, slots, state, arena):
    """Add the counts of slots `first` to `last` of one table to another; returns where it stopped for want of room."""
    for slot in range(first, last):
        place = slot * SLOT_WORDS
        low, high, count = from_slots[place], from_slots[place + 1], from_slots[place + 2]
        if high == _NONE:
            continue
        if high < LONG:
            if not has_room(state, arena, 1, 0):
                return slot
            add_short(slots, state, low, high, count)
        else:
            stored = np.int64(high & PLACE)
            length = np.int64(load_word(from_arena, stored))
            if not has_room(state, arena, 1, length):
                return slot
            add_long(slots, state, arena, low, from_arena, stored + 8, length, count)
    return last


@compiled(types.void, UINT64S, UINT64S, INT64S)
def move_slots(from_slots, slots, state):
    """Put the slots of a table, which shares its arena, into a larger empty array."""
    mask = (1 << state[BITS]) - 1
    for source in range(0, from_slots.size, SLOT_WORDS):
        low, high = from_slots[source], from_slots[source + 1]
        if high == _NONE:
            continue
        hashed = hash_words(low, high) if high < LONG else low
        slot = first_slot(hashed, state[BITS])
        while slots[slot * SLOT_WORDS + 1] != _NONE:
            slot = slot + 1 & mask
        slots[slot * SLOT_WORDS] = low
        slots[slot * SLOT_WORDS + 1] = high
        slots[slot * SLOT_WORDS + 2] = from_slots[source + 2]


@compiled(types.int64, BYTES, INT64S, UINT64S, types.int64, UINT64S, INT64S, _ARENA)
def add_listed(data, ends, amounts, first, slots, state, arena):
    """Add amounts to the counts of words that lie side by side, from word `first` on; returns where it stopped."""
    begin = ends[first - 1] if first > 0 else 0
    for word in range(first, ends.size):
        length = ends[word] - begin
        if not has_room(state, arena, 1, length):
            return word
        if length <= LONGEST_SHORT:
            low, high = short_key(data, begin, length)
            add_short(slots, state, low, high, amounts[word])
        else:
            hashed = hash_bytes(data, begin, length)
            add_long(slots, state, arena, hashed, data, begin, length, amounts[word])
        begin = ends[word]
    return ends.size


@compiled(types.void, UINT64S, INT64S, UINT64S)
def hash_slots(slots, chosen, hashes):
    """The hashes of the words in some slots."""
    for number in range(chosen.size):
        low, high = slots[chosen[number] * SLOT_WORDS], slots[chosen[number] * SLOT_WORDS + 1]
        hashes[number] = hash_words(low, high) if high < LONG else low


@compiled(types.int64, UINT64S, BYTES, INT64S)
def arena_needed(slots, arena, chosen):
    """The bytes of arena that the words in some slots take."""
    needed = 0
    for slot in chosen:
        high = slots[slot * SLOT_WORDS + 1]
        if high >= LONG:
            needed += 8 + (np.int64(load_word(arena, np.int64(high & PLACE))) + 7 & ~7)
    return needed


@compiled(types.void, UINT64S, BYTES, INT64S, UINT64S, _ARENA, INT64S)
def gather(slots, arena, chosen, to_slots, to_arena, state):
    """Copy the words in some slots to arrays of just their size, in order."""
    state[ARENA_USED] = 0
    for number in range(chosen.size):
        source, target = chosen[number] * SLOT_WORDS, number * SLOT_WORDS
        high = slots[source + 1]
        if high >= LONG:
            place = np.int64(high & PLACE)
            length = np.int64(load_word(arena, place))
            high = LONG | np.uint64(store(to_arena, state, arena, place + 8, length))
        to_slots[target] = slots[source]
        to_slots[target + 1] = high
        to_slots[target + 2] = slots[source + 2]
