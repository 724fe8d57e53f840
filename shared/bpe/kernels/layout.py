r"""The distinct words of a corpus side by side in memory, as merging wants them.

Words that occur equally often lie together, the most frequent first, and each such group begins at a multiple of
GROUP positions: so one small array, `weights[position >> GROUP_BITS]`, tells how often the text at a position occurs.

    text    | l o w \0 l o w e r \0 ...       the bytes, never changed: tokens are spelt by pointing at them
    ids     | l o w  /  l o w e r  / ...      the tokens so far; / is GAP
    after `l o` became token 256 and `256 w` token 257:
    ids     | 257 . -3 /  257 . -3 e r / ...

A token lies on its bytes: its id on the first and, if it has several, minus its length on the last. So both neighbours
are found without links: the next token begins `length` further on, and the byte before tells where the one before
begins. Bytes inside are INSIDE.
"""

import numpy as np

from shared.bpe.kernels import types
from shared.bpe.kernels.compiling import compiled
from shared.bpe.kernels.intrinsics import load_word, prefetch
from shared.bpe.kernels.types import BYTES, INT32S, INT64S, UINT64S
from shared.bpe.kernels.word_table import LONG, LONGEST_SHORT, PLACE, SLOT_WORDS

GROUP_BITS = 6
GROUP = 1 << GROUP_BITS

PREFETCH_DISTANCE = 16  # words

INSIDE = -1
GAP = -(1 << 31)

_TEXT = types.Array(types.uint8)


@compiled(types.int64, UINT64S, types.int64, BYTES)
def word_length(slots, slot, arena):
    """The bytes of the word in a slot."""
    high = slots[slot * SLOT_WORDS + 1]
    if high < LONG:
        return np.int64(high >> np.uint64(56))
    return np.int64(load_word(arena, np.int64(high & PLACE)))


@compiled(types.void, UINT64S, types.int64, BYTES, _TEXT, types.int64)
def copy_word(slots, slot, arena, text, position):
    """Write the bytes of the word in a slot."""
    low, high = slots[slot * SLOT_WORDS], slots[slot * SLOT_WORDS + 1]
    length = word_length(slots, slot, arena)
    if length > LONGEST_SHORT:
        begin = np.int64(high & PLACE) + 8
        for offset in range(length):
            text[position + offset] = arena[begin + offset]
        return
    for offset in range(length):
        word = low if offset < 8 else high
        text[position + offset] = np.uint8(word >> np.uint64(8 * (offset & 7)))


@compiled(types.UniTuple(types.int64, 3), UINT64S, BYTES, INT64S, types.int64)
def measure(slots, arena, order, begin):
    """Where the layout of the words in `order` ends if it begins at `begin`; how often they occur, and their bytes."""
    position, words, num_bytes = begin, 0, 0
    weight = 0
    for number in range(order.size):
        prefetch(slots, order[min(number + PREFETCH_DISTANCE, order.size - 1)] * SLOT_WORDS)
        slot = order[number]
        count = np.int64(slots[slot * SLOT_WORDS + 2])
        if count != weight:
            weight = count
            position = (position + GROUP - 1) & -GROUP
        length = word_length(slots, slot, arena)
        position += length + 1
        words += count
        num_bytes += count * length
    return (position + GROUP - 1) & -GROUP, words, num_bytes


@compiled(types.int64, UINT64S, BYTES, INT64S, types.int64, _TEXT, INT32S, INT64S)
def lay_out(slots, arena, order, begin, text, ids, weights):
    """Write the words in `order`, which has the most frequent first.

    Args:
        slots: Of a word table.
        arena: Of the same table.
        order: Slots.
        begin: The first position to write to.
        text: Bytes by position.
        ids: Tokens by position, all GAP.
        weights: Occurrences by group of positions.

    Returns:
        The first position behind them, where the next group begins.
    """
    position = begin
    weight = np.uint64(0)
    for number in range(order.size):
        prefetch(slots, order[min(number + PREFETCH_DISTANCE, order.size - 1)] * SLOT_WORDS)
        slot = order[number]
        if slots[slot * SLOT_WORDS + 2] != weight:
            weight = slots[slot * SLOT_WORDS + 2]
            position = (position + GROUP - 1) & -GROUP
        length = word_length(slots, slot, arena)
        copy_word(slots, slot, arena, text, position)
        for offset in range(position, position + length):
            ids[offset] = np.int32(text[offset])
        for group in range(position >> GROUP_BITS, (position + length >> GROUP_BITS) + 1):
            weights[group] = np.int64(weight)
        position += length + 1
    return (position + GROUP - 1) & -GROUP
