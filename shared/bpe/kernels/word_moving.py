"""Words from one table to another, or to disk."""

import numpy as np

from shared.bpe.kernels.word_table import (
    ABSENT,
    ARENA,
    ARENA_USED,
    BITS,
    LONG,
    LONGEST_SHORT,
    PLACE,
    USED,
    WORD_SIZE,
    WORDS,
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

PREFETCH_DISTANCE = 16  # words


@compiled(types.int64, WORDS, BYTES, types.int64, INT32S, UINT64S, INT64S, ARENA)
def add_words(from_words, from_arena, first, index, words, state, arena):
    """Add the counts of one table, from a word on, to another; returns where it stopped for want of room."""
    last = from_words.size // WORD_SIZE
    for number in range(first, last):
        later = min(number + 2 * PREFETCH_DISTANCE, last - 1)
        prefetch(index, first_slot(hash_of(from_words, later), state[BITS]))
        soon = min(number + PREFETCH_DISTANCE, last - 1)
        prefetch(words, np.int64(index[first_slot(hash_of(from_words, soon), state[BITS])]) * WORD_SIZE)
        place = number * WORD_SIZE
        low, high, count = from_words[place], from_words[place + 1], from_words[place + 2]
        slot = first_slot(hash_of(from_words, number), state[BITS])
        length = length_of(from_words, from_arena, number)
        if not has_room(state, arena, 1, length):
            return number
        if high < LONG:
            add_short(index, words, state, slot, low, high, count)
        else:
            begin = np.int64(high & PLACE) + 8
            add_long(index, words, state, arena, slot, low, from_arena, begin, length, count)
    return last


@compiled(types.void, WORDS, INT32S, INT64S)
def fill_index(words, index, state):
    """Enter all words into an index that is empty."""
    mask = (1 << state[BITS]) - 1
    for number in range(state[USED]):
        later = min(number + PREFETCH_DISTANCE, state[USED] - 1)
        prefetch(index, first_slot(hash_of(words, later), state[BITS]))
        slot = first_slot(hash_of(words, number), state[BITS])
        while index[slot] != ABSENT:
            slot = slot + 1 & mask
        index[slot] = number


@compiled(types.int64, BYTES, INT64S, UINT64S, types.int64, INT32S, UINT64S, INT64S, ARENA)
def add_listed(data, ends, amounts, first, index, words, state, arena):
    """Add amounts to the counts of words that lie side by side, from word `first` on; returns where it stopped."""
    begin = ends[first - 1] if first > 0 else 0
    for word in range(first, ends.size):
        length = ends[word] - begin
        if not has_room(state, arena, 1, length):
            return word
        if length <= LONGEST_SHORT:
            low, high = short_key(data, begin, length)
            slot = first_slot(hash_words(low, high), state[BITS])
            add_short(index, words, state, slot, low, high, amounts[word])
        else:
            hashed = hash_bytes(data, begin, length)
            slot = first_slot(hashed, state[BITS])
            add_long(index, words, state, arena, slot, hashed, data, begin, length, amounts[word])
        begin = ends[word]
    return ends.size


@compiled(types.void, WORDS, UINT64S)
def hash_all(words, hashes):
    """The hashes of all words."""
    for number in range(hashes.size):
        hashes[number] = hash_of(words, number)


@compiled(types.int64, WORDS, BYTES, INT64S)
def arena_needed(words, arena, chosen):
    """The bytes of arena that some words take."""
    needed = 0
    for number in chosen:
        if words[number * WORD_SIZE + 1] >= LONG:
            needed += 8 + (length_of(words, arena, number) + 7 & ~7)
    return needed


@compiled(types.void, WORDS, BYTES, INT64S, UINT64S, ARENA, INT64S)
def gather(words, arena, chosen, to_words, to_arena, state):
    """Copy some words to arrays of just their size, in order."""
    state[ARENA_USED] = 0
    for number in range(chosen.size):
        source, target = chosen[number] * WORD_SIZE, number * WORD_SIZE
        high = words[source + 1]
        if high >= LONG:
            place = np.int64(high & PLACE)
            high = LONG | np.uint64(store(to_arena, state, arena, place + 8, stored_length(arena, place)))
        to_words[target] = words[source]
        to_words[target + 1] = high
        to_words[target + 2] = words[source + 2]
