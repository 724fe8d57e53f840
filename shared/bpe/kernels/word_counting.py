"""Counting the pieces of text in a word table.

Pieces are taken in batches that fit into the cache, each batch in three passes: the first asks for the memory of the
slots, the second for that of the words, and the third finds both at hand.
"""

import numpy as np

from shared.bpe.kernels.boundaries import find_special
from shared.bpe.kernels.scanner import scan
from shared.bpe.kernels.word_table import (
    ARENA,
    BITS,
    LONG,
    LONGEST_SHORT,
    WORD_SIZE,
    add_long,
    add_short,
    first_slot,
    has_room,
    hash_bytes,
    hash_words,
    short_key,
)
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import prefetch
from shared.kernels.types import BYTES, INT32S, INT64S, UINT64S

KEY_SIZE = 3  # low, high and slot of a piece

_ONE = np.uint64(1)


@compiled(types.void, BYTES, types.int64, INT64S, types.int64, UINT64S, INT32S, INT64S, inline=True)
def prepare_keys(data, begin, cuts, count, keys, index, state):
    """Write the keys of pieces side by side, and ask for the memory of their slots."""
    for piece in range(count):
        end = cuts[piece]
        length = end - begin
        if length <= LONGEST_SHORT:
            low, high = short_key(data, begin, length)
            hashed = hash_words(low, high)
        else:
            low = hashed = hash_bytes(data, begin, length)
            high = LONG
        slot = first_slot(hashed, state[BITS])
        keys[KEY_SIZE * piece] = low
        keys[KEY_SIZE * piece + 1] = high
        keys[KEY_SIZE * piece + 2] = np.uint64(slot)
        prefetch(index, slot)
        begin = end


@compiled(types.void, types.int64, UINT64S, INT32S, UINT64S, inline=True)
def prefetch_words(count, keys, index, words):
    """Ask for the memory of the words that prepared pieces will most likely be."""
    for piece in range(count):
        prefetch(words, np.int64(index[np.int64(keys[KEY_SIZE * piece + 2])]) * WORD_SIZE)


@compiled(types.void, BYTES, types.int64, INT64S, types.int64, UINT64S, INT32S, UINT64S, INT64S, ARENA, inline=True)
def add_prepared(data, begin, cuts, count, keys, index, words, state, arena):
    """Count each of the prepared pieces once."""
    for piece in range(count):
        end = cuts[piece]
        low, high = keys[KEY_SIZE * piece], keys[KEY_SIZE * piece + 1]
        slot = np.int64(keys[KEY_SIZE * piece + 2])
        if high < LONG:
            add_short(index, words, state, slot, low, high, _ONE)
        else:
            add_long(index, words, state, arena, slot, low, data, begin, end - begin, _ONE)
        begin = end


@compiled(
    types.int64,
    *(types.int64, BYTES, types.int64, types.int64, BYTES, INT64S, UINT64S, INT32S, UINT64S, INT64S, ARENA),
)
def count_text(pattern, data, begin, end, classes, cuts, keys, index, words, state, arena):
    """Count the pieces of `data[begin:end]` and return where it stopped: before `end` if the table must grow first."""
    while begin < end:
        count = scan(pattern, data, begin, end, classes, cuts)
        reached = cuts[count - 1]
        if not has_room(state, arena, count, reached - begin):
            return begin
        prepare_keys(data, begin, cuts, count, keys, index, state)
        prefetch_words(count, keys, index, words)
        add_prepared(data, begin, cuts, count, keys, index, words, state, arena)
        begin = reached
    return begin


@compiled(
    types.int64,
    *(types.int64, BYTES, types.int64, types.int64, BYTES, BYTES, INT64S),
    *(INT64S, UINT64S, INT32S, UINT64S, INT64S, ARENA),
)
def count_chunk(pattern, data, begin, end, classes, specials, offsets, cuts, keys, index, words, state, arena):
    """`count_text` between the special tokens of `data[begin:end]`, which are not counted."""
    while begin < end:
        special, length = find_special(data, begin, end, specials, offsets)
        begin = count_text(pattern, data, begin, special, classes, cuts, keys, index, words, state, arena)
        if begin < special:
            return begin
        begin += length
    return begin
