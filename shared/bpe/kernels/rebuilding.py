"""Counting the pairs of a layout as it stands, those at or above the threshold.

At the start all tokens are bytes: a table of all their pairs takes the place of look-ups, and threads share the work,
each with a part of the positions and a table of its own. Later `rebuild_pairs` does it.
"""

import numpy as np

from shared.bpe.kernels.layout import GAP, GROUP_BITS
from shared.bpe.kernels.pairs import (
    ABSENT,
    INDEX,
    NUM_PAIRS,
    PAIRS,
    THRESHOLD,
    TOKENS,
    add_pair,
    find_pair,
    forget_pairs,
    pair_slot,
)
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.types import INT32S, INT64S

# Weight and number of the occurrences of two bytes side by side, by `left << 8 | right`.
BYTE_PAIR = np.dtype([("count", "i8"), ("places", "i8")])
BYTE_PAIRS = types.Array(BYTE_PAIR)
NUM_BYTE_PAIRS = 1 << 16


@compiled(types.void, INT32S, INT64S, types.int64, types.int64, BYTE_PAIRS, INT64S)
def count_byte_pairs(ids, weights, begin, end, byte_pairs, uses):
    """Count the pairs of bytes that begin at positions of a part, and how often each byte occurs there."""
    for position in range(begin, end):
        left, right = np.int64(ids[position]), np.int64(ids[position + 1])
        if left < 0:
            continue
        weight = weights[position >> GROUP_BITS]
        uses[left] += weight
        if right >= 0:
            key = left << 8 | right
            byte_pairs[key].count += weight
            byte_pairs[key].places += 1


@compiled(types.void, BYTE_PAIRS, INDEX, PAIRS, INT64S)
def enter_byte_pairs(byte_pairs, index, pairs, state):
    """Enter the pairs that are frequent enough in all parts together, of which there are NUM_BYTE_PAIRS entries each.

    Afterwards `count` says where the places of a pair in a part begin, ABSENT if it is not entered.
    """
    forget_pairs(index, state)
    for key in range(NUM_BYTE_PAIRS):
        count, places = np.int64(0), np.int64(0)
        for entry in range(key, byte_pairs.size, NUM_BYTE_PAIRS):
            count += byte_pairs[entry].count
            places += byte_pairs[entry].places
        first = ABSENT
        if count >= state[THRESHOLD]:
            first = pairs[add_pair(index, pairs, state, key >> 8, key & 255, count, places)].first
        for entry in range(key, byte_pairs.size, NUM_BYTE_PAIRS):
            byte_pairs[entry].count = first
            if first != ABSENT:
                first += byte_pairs[entry].places


@compiled(types.void, INT32S, types.int64, types.int64, BYTE_PAIRS, INT32S)
def fill_byte_places(ids, begin, end, byte_pairs, places):
    """Write the places of the pairs of bytes that begin at positions of a part, ascending."""
    for position in range(begin, end):
        left, right = np.int64(ids[position]), np.int64(ids[position + 1])
        if left >= 0 and right >= 0:
            key = left << 8 | right
            place = byte_pairs[key].count
            if place != ABSENT:
                places[place] = position
                byte_pairs[key].count = place + 1


@compiled(types.void, INT32S, INT64S, TOKENS, INT64S)
def sketch_pairs(ids, weights, tokens, sketch):
    """Add up the weights of all pairs in few counters by their hash: none is below the count of any of its pairs."""
    position = np.int64(0)
    while position < ids.size:
        token = np.int64(ids[position])
        if token < 0:
            position += 1
            continue
        after = position + tokens[token].length
        if ids[after] != GAP:
            sketch[pair_slot(token, np.int64(ids[after]), sketch.size)] += weights[position >> GROUP_BITS]
        position = after


@compiled(types.boolean, INT32S, INT64S, TOKENS, INT64S, PAIRS, INDEX, INT64S)
def count_pairs(ids, weights, tokens, sketch, pairs, index, state):
    """Count the pairs that the sketch holds for frequent enough; returns whether there was room for all."""
    position = np.int64(0)
    while position < ids.size:
        token = np.int64(ids[position])
        if token < 0:
            position += 1
            continue
        after = position + tokens[token].length
        other = np.int64(ids[after])
        if other != GAP and sketch[pair_slot(token, other, sketch.size)] >= state[THRESHOLD]:
            number = find_pair(index, pairs, token, other)
            if number == ABSENT:
                if state[NUM_PAIRS] == pairs.size:
                    return False
                number = add_pair(index, pairs, state, token, other, 0, 0)
            pairs[number].count += weights[position >> GROUP_BITS]
            pairs[number].places += 1
        position = after
    return True


@compiled(types.void, PAIRS, INDEX, INT64S)
def drop_rare_pairs(pairs, index, state):
    """Keep the pairs that reach the threshold, and give each its range of places."""
    counted = state[NUM_PAIRS]
    forget_pairs(index, state)
    for old in range(counted):
        left, right, count, places = pairs[old].left, pairs[old].right, pairs[old].count, pairs[old].places
        if count >= state[THRESHOLD]:
            number = add_pair(index, pairs, state, left, right, count, places)
            pairs[number].places = 0


@compiled(types.void, INT32S, TOKENS, PAIRS, INDEX, INT32S)
def fill_places(ids, tokens, pairs, index, places):
    """Write the places of all pairs, ascending."""
    position = np.int64(0)
    while position < ids.size:
        token = np.int64(ids[position])
        if token < 0:
            position += 1
            continue
        after = position + tokens[token].length
        if ids[after] != GAP:
            number = find_pair(index, pairs, token, np.int64(ids[after]))
            if number != ABSENT:
                places[pairs[number].first + pairs[number].places] = position
                pairs[number].places += 1
        position = after


@compiled(types.boolean, INT32S, INT64S, TOKENS, PAIRS, INDEX, INT32S, INT64S, INT64S)
def rebuild_pairs(ids, weights, tokens, pairs, index, places, state, sketch):
    """Count the pairs at or above the threshold anew; returns False if they are too many for the arrays.

    Args:
        ids: See `layout`.
        weights: See `layout`.
        tokens: See `pairs`.
        pairs: See `pairs`.
        index: See `pairs`.
        places: Room for all positions.
        state: See `pairs`.
        sketch: A power of two of counters.
    """
    sketch[:] = 0
    forget_pairs(index, state)
    sketch_pairs(ids, weights, tokens, sketch)
    if not count_pairs(ids, weights, tokens, sketch, pairs, index, state):
        return False
    drop_rare_pairs(pairs, index, state)
    fill_places(ids, tokens, pairs, index, places)
    return True
