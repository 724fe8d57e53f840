"""Counting the pairs of a layout as it stands, those at or above the threshold.

At the start all tokens are bytes: a table of all their pairs takes the place of look-ups, and threads share the work,
each with a part of the positions and a table of its own. Later `rebuild_pairs` does it.
"""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from shared.bpe.kernels.layout import GAP, GROUP_BITS, Layout
from shared.bpe.kernels.pairs import (
    ABSENT,
    NUM_PAIRS,
    THRESHOLD,
    Pairs,
    Tokens,
    add_pair,
    find_pair,
    forget_pairs,
    pair_slot,
)
from shared.kernels.compiling import compiled
from shared.kernels.types import Array, Int32Array, Int64Array, boolean, int64

# Weight and number of the occurrences of two bytes side by side, by `left << 8 | right`.
BYTE_PAIR = np.dtype([("count", "i8"), ("places", "i8")])
BytePairs = Annotated[NDArray[Any], Array(BYTE_PAIR)]
NUM_BYTE_PAIRS = 1 << 16


@compiled
def count_byte_pairs(layout: Layout, begin: int64, end: int64, byte_pairs: BytePairs, uses: Int64Array) -> None:
    """Count the pairs of bytes that begin at positions of a part, and how often each byte occurs there."""
    ids = layout.ids
    for position in range(begin, end):
        left, right = np.int64(ids[position]), np.int64(ids[position + 1])
        if left < 0:
            continue
        weight = layout.weights[position >> GROUP_BITS]
        uses[left] += weight
        if right >= 0:
            key = left << 8 | right
            byte_pairs[key].count += weight
            byte_pairs[key].places += 1


@compiled
def enter_byte_pairs(byte_pairs: BytePairs, pairs: Pairs) -> None:
    """Enter the pairs that are frequent enough in all parts together, of which there are NUM_BYTE_PAIRS entries each.

    Afterwards `count` says where the places of a pair in a part begin, ABSENT if it is not entered.
    """
    forget_pairs(pairs)
    for key in range(NUM_BYTE_PAIRS):
        count, places = np.int64(0), np.int64(0)
        for entry in range(key, byte_pairs.size, NUM_BYTE_PAIRS):
            count += byte_pairs[entry].count
            places += byte_pairs[entry].places
        first = ABSENT
        if count >= pairs.state[THRESHOLD]:
            first = pairs.entries[add_pair(pairs, key >> 8, key & 255, count, places)].first
        for entry in range(key, byte_pairs.size, NUM_BYTE_PAIRS):
            byte_pairs[entry].count = first
            if first != ABSENT:
                first += byte_pairs[entry].places


@compiled
def fill_byte_places(ids: Int32Array, begin: int64, end: int64, byte_pairs: BytePairs, places: Int32Array) -> None:
    """Write the places of the pairs of bytes that begin at positions of a part, ascending."""
    for position in range(begin, end):
        left, right = np.int64(ids[position]), np.int64(ids[position + 1])
        if left >= 0 and right >= 0:
            key = left << 8 | right
            place = byte_pairs[key].count
            if place != ABSENT:
                places[place] = position
                byte_pairs[key].count = place + 1


@compiled
def next_token(ids: Int32Array, position: int64) -> int64:
    """The first position, not before this one, where a token begins; the size of `ids` if there is none."""
    while position < ids.size and ids[position] < 0:
        position += 1
    return position


@compiled
def sketch_pairs(layout: Layout, tokens: Tokens, sketch: Int64Array) -> None:
    """Add up the weights of all pairs in few counters by their hash: none is below the count of any of its pairs."""
    ids = layout.ids
    position = next_token(ids, 0)
    while position < ids.size:
        token = np.int64(ids[position])
        after = position + tokens.entries[token].length
        if ids[after] != GAP:
            slot = pair_slot(token, np.int64(ids[after]), sketch.size)
            sketch[slot] += layout.weights[position >> GROUP_BITS]
        position = next_token(ids, after)


@compiled
def count_pairs(layout: Layout, tokens: Tokens, sketch: Int64Array, pairs: Pairs) -> boolean:
    """Count the pairs that the sketch holds for frequent enough; returns whether there was room for all."""
    ids, state = layout.ids, pairs.state
    position = next_token(ids, 0)
    while position < ids.size:
        token = np.int64(ids[position])
        after = position + tokens.entries[token].length
        other = np.int64(ids[after])
        if other != GAP and sketch[pair_slot(token, other, sketch.size)] >= state[THRESHOLD]:
            number = find_pair(pairs, token, other)
            if number == ABSENT:
                if state[NUM_PAIRS] == pairs.entries.size:
                    return False
                number = add_pair(pairs, token, other, 0, 0)
            pairs.entries[number].count += layout.weights[position >> GROUP_BITS]
            pairs.entries[number].places += 1
        position = next_token(ids, after)
    return True


@compiled
def drop_rare_pairs(pairs: Pairs) -> None:
    """Keep the pairs that reach the threshold, and give each its range of places."""
    counted = pairs.state[NUM_PAIRS]
    forget_pairs(pairs)
    for old in range(counted):
        pair = pairs.entries[old]
        left, right, count, places = pair.left, pair.right, pair.count, pair.places
        if count >= pairs.state[THRESHOLD]:
            number = add_pair(pairs, left, right, count, places)
            pairs.entries[number].places = 0


@compiled
def fill_places(ids: Int32Array, tokens: Tokens, pairs: Pairs) -> None:
    """Write the places of all pairs, ascending."""
    position = next_token(ids, 0)
    while position < ids.size:
        token = np.int64(ids[position])
        after = position + tokens.entries[token].length
        if ids[after] != GAP:
            number = find_pair(pairs, token, np.int64(ids[after]))
            if number != ABSENT:
                pair = pairs.entries[number]
                pairs.places[pair.first + pair.places] = position
                pair.places += 1
        position = next_token(ids, after)


@compiled
def rebuild_pairs(layout: Layout, tokens: Tokens, pairs: Pairs, sketch: Int64Array) -> boolean:
    """Count the pairs at or above the threshold anew; returns False if they are too many for the arrays.

    Args:
        layout: The pretokens.
        tokens: The vocabulary so far.
        pairs: Those that are tracked, with room for all positions in `places`.
        sketch: A power of two of counters.
    """
    sketch[:] = 0
    forget_pairs(pairs)
    sketch_pairs(layout, tokens, sketch)
    if not count_pairs(layout, tokens, sketch, pairs):
        return False
    drop_rare_pairs(pairs)
    fill_places(layout.ids, tokens, pairs)
    return True
