r"""The distinct pretokens of a corpus side by side in memory, as merging wants them.

Pretokens that occur equally often lie together, the most frequent first, and each such group begins at a multiple of
GROUP positions: so one small array, `weights[position >> GROUP_BITS]`, holds how often the text at a position occurs.

    text    | l o w \0 l o w e r \0 ...       the bytes, never changed: tokens are spelled by pointing at them
    ids     | l o w  /  l o w e r  / ...      the tokens so far; / is GAP
    after `l o` became token 256 and `256 w` token 257:
    ids     | 257 . -3 /  257 . -3 e r / ...

A token lies on its bytes: its id on the first and, if it has several, minus its length on the last. So both neighbors
are found without links: the next token begins `length` further on, and the byte before gives where the previous one
begins. Bytes inside are INSIDE.
"""

import numpy as np

from shared.bpe.kernels.pretoken_table import ENTRIES, ENTRY_SIZE, LONGEST_SHORT, PLACE, length_of
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import prefetch, store_word
from shared.kernels.types import BYTES, INT32S, INT64S

GROUP_BITS = 6
GROUP = 1 << GROUP_BITS

SLACK = LONGEST_SHORT + 1  # positions behind a pretoken that may be written to with it

PREFETCH_DISTANCE = 16  # pretokens

INSIDE = -1
GAP = -(1 << 31)

_TEXT = types.Array(types.uint8)


@compiled(types.int64, types.int64, inline=True)
def next_group(position):
    """The first position of a group that is not before another position."""
    return position + GROUP - 1 & -GROUP


@compiled(types.void, INT32S, types.int64, types.int64, inline=True)
def fill_gap(ids, begin, end):
    """Write gaps up to where the next group begins."""
    for position in range(begin, end):
        ids[position] = GAP


@compiled(types.UniTuple(types.int64, ("end", "occurrences", "num_bytes")), ENTRIES, BYTES, INT64S, types.int64)
def measure(entries, arena, order, begin):
    """Where the layout of the pretokens in `order` ends if it begins at `begin`; how often they occur, and their bytes.

    Nothing is written behind that end, so that threads may lay out one part each.
    """
    position, occurrences, num_bytes = begin, 0, 0
    weight = 0
    for entry in range(order.size):
        prefetch(entries, order[min(entry + PREFETCH_DISTANCE, order.size - 1)] * ENTRY_SIZE)
        number = order[entry]
        count = np.int64(entries[number * ENTRY_SIZE + 2])
        if count != weight:
            weight = count
            position = next_group(position)
        length = length_of(entries, arena, number)
        position += length + 1
        occurrences += count
        num_bytes += count * length
    return next_group(position + SLACK), occurrences, num_bytes


@compiled(types.void, ENTRIES, BYTES, types.int64, types.int64, _TEXT, INT32S, types.int64, inline=True)
def copy_pretoken(entries, arena, number, length, text, ids, position):
    """Write the bytes of a pretoken, as text and as ids. Up to SLACK positions behind it are written to."""
    high = entries[number * ENTRY_SIZE + 1]
    if length <= LONGEST_SHORT:
        # Without a loop of unpredictable length.
        store_word(text, position, entries[number * ENTRY_SIZE])
        store_word(text, position + 8, high & PLACE)
        for offset in range(LONGEST_SHORT):
            ids[position + offset] = np.int32(text[position + offset])
    else:
        begin = np.int64(high & PLACE) + 8
        for offset in range(length):
            text[position + offset] = arena[begin + offset]
            ids[position + offset] = np.int32(arena[begin + offset])


@compiled(types.void, ENTRIES, BYTES, INT64S, types.int64, _TEXT, INT32S, INT64S)
def lay_out(entries, arena, order, begin, text, ids, weights):
    """Write the pretokens in `order`, which has the most frequent first.

    Args:
        entries: Of a pretoken table.
        arena: Of the same table.
        order: Numbers of pretokens.
        begin: The first position to write to.
        text: Bytes by position.
        ids: Tokens by position.
        weights: Occurrences by group of positions.
    """
    position = begin
    weight = 0
    for entry in range(order.size):
        prefetch(entries, order[min(entry + PREFETCH_DISTANCE, order.size - 1)] * ENTRY_SIZE)
        number = order[entry]
        count = np.int64(entries[number * ENTRY_SIZE + 2])
        if count != weight:
            weight = count
            fill_gap(ids, position, next_group(position))
            position = next_group(position)
        length = length_of(entries, arena, number)
        copy_pretoken(entries, arena, number, length, text, ids, position)
        for group in range(position >> GROUP_BITS, (position + length >> GROUP_BITS) + 1):
            weights[group] = weight
        position += length
        ids[position] = GAP
        position += 1
    fill_gap(ids, position, next_group(position + SLACK))
