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

from typing import NamedTuple

import numpy as np

from shared.bpe.kernels.pretoken_keys import SHORT_BYTES
from shared.bpe.kernels.pretoken_table import ENTRY_SIZE, PLACE, Pretokens, length_of
from shared.kernels.compiling import compiled, inlined
from shared.kernels.intrinsics import prefetch, store_word
from shared.kernels.types import Int32Array, Int64Array, Uint8Array, int64

GROUP_BITS = 6
GROUP = 1 << GROUP_BITS

SLACK = SHORT_BYTES + 1  # positions behind a pretoken that may be written to with it

PREFETCH_DISTANCE = 16  # pretokens

INSIDE = -1
GAP = -(1 << 31)


class Layout(NamedTuple):
    """See the module.

    Attributes:
        text: Bytes by position.
        ids: Tokens by position.
        weights: Occurrences by group of positions.
    """

    text: Uint8Array
    ids: Int32Array
    weights: Int64Array


class Measured(NamedTuple):
    """Where the layout of some pretokens ends, how often they occur, and their bytes."""

    end: int64
    occurrences: int64
    num_bytes: int64


@inlined
def next_group(position: int64) -> int64:
    """The first position of a group that is not before another position."""
    return position + GROUP - 1 & -GROUP


@inlined
def fill_gap(ids: Int32Array, begin: int64, end: int64) -> None:
    """Write gaps up to where the next group begins."""
    for position in range(begin, end):
        ids[position] = GAP


@compiled
def measure(pretokens: Pretokens, order: Int64Array, begin: int64) -> Measured:
    """Measure the layout of the pretokens in `order`, which begins at `begin`.

    Nothing is written behind its end, so that threads may lay out one part each.
    """
    position, occurrences, num_bytes = begin, 0, 0
    weight = 0
    for entry in range(order.size):
        prefetch(pretokens.entries, order[min(entry + PREFETCH_DISTANCE, order.size - 1)] * ENTRY_SIZE)
        number = order[entry]
        count = np.int64(pretokens.entries[number * ENTRY_SIZE + 2])
        if count != weight:
            weight = count
            position = next_group(position)
        length = length_of(pretokens, number)
        position += length + 1
        occurrences += count
        num_bytes += count * length
    return Measured(next_group(position + SLACK), occurrences, num_bytes)


@inlined
def copy_pretoken(pretokens: Pretokens, number: int64, length: int64, layout: Layout, position: int64) -> None:
    """Write the bytes of a pretoken, as text and as ids. Up to SLACK positions behind it are written to."""
    text, ids = layout.text, layout.ids
    high = pretokens.entries[number * ENTRY_SIZE + 1]
    if length <= SHORT_BYTES:
        # Without a loop of unpredictable length.
        store_word(text, position, pretokens.entries[number * ENTRY_SIZE])
        store_word(text, position + 8, high & PLACE)
        for offset in range(SHORT_BYTES):
            ids[position + offset] = np.int32(text[position + offset])
    else:
        begin = np.int64(high & PLACE) + 8
        for offset in range(length):
            text[position + offset] = pretokens.arena[begin + offset]
            ids[position + offset] = np.int32(pretokens.arena[begin + offset])


@compiled
def lay_out(pretokens: Pretokens, order: Int64Array, begin: int64, layout: Layout) -> None:
    """Write the pretokens in `order`, which has the most frequent first, from a position on."""
    position = begin
    weight = 0
    for entry in range(order.size):
        prefetch(pretokens.entries, order[min(entry + PREFETCH_DISTANCE, order.size - 1)] * ENTRY_SIZE)
        number = order[entry]
        count = np.int64(pretokens.entries[number * ENTRY_SIZE + 2])
        if count != weight:
            weight = count
            fill_gap(layout.ids, position, next_group(position))
            position = next_group(position)
        length = length_of(pretokens, number)
        copy_pretoken(pretokens, number, length, layout, position)
        for group in range(position >> GROUP_BITS, (position + length >> GROUP_BITS) + 1):
            layout.weights[group] = weight
        position += length
        layout.ids[position] = GAP
        position += 1
    fill_gap(layout.ids, position, next_group(position + SLACK))
