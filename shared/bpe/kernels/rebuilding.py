"""Counting the pairs of a layout as it stands, those at or above the threshold."""

import numpy as np

from shared.bpe.kernels import types
from shared.bpe.kernels.compiling import compiled
from shared.bpe.kernels.layout import GAP, GROUP_BITS
from shared.bpe.kernels.pairs import (
    ABSENT,
    HEAP,
    HEAP_SIZE,
    INDEX,
    NUM_PAIRS,
    NUM_TOKENS,
    PAIRS,
    PLACES_USED,
    THRESHOLD,
    TOKENS,
    add_pair,
    find_pair,
    pair_slot,
    sift_down,
)
from shared.bpe.kernels.types import BYTES, INT32S, INT64S


@compiled(types.void, INT32S, INT64S, INT64S, INT64S)
def count_byte_pairs(ids, weights, counts, numbers):
    """Sum the weights and count the occurrences of pairs of bytes, by `left << 8 | right`."""
    for position in range(ids.size - 1):
        left, right = np.int64(ids[position]), np.int64(ids[position + 1])
        if left >= 0 and right >= 0:
            counts[left << 8 | right] += weights[position >> GROUP_BITS]
            numbers[left << 8 | right] += 1


@compiled(types.void, INT32S, INT64S, INT32S)
def fill_byte_places(ids, cursors, places):
    """Write the places of pairs of bytes from their cursors on, where those are not ABSENT."""
    for position in range(ids.size - 1):
        left, right = np.int64(ids[position]), np.int64(ids[position + 1])
        if left >= 0 and right >= 0:
            cursor = cursors[left << 8 | right]
            if cursor != ABSENT:
                places[cursor] = position
                cursors[left << 8 | right] = cursor + 1


@compiled(types.void, INT32S, INT64S, PAIRS, INDEX, INT32S, INT64S, INT64S)
def build_byte_pairs(ids, weights, pairs, index, places, state, scratch):
    """Enter the pairs of a layout that is all bytes still: no look-up, a table of 65,536 holds them."""
    counts, numbers, cursors = scratch[:65536], scratch[65536:131072], scratch[131072:196608]
    count_byte_pairs(ids, weights, counts, numbers)
    for key in range(65536):
        cursors[key] = ABSENT
        if counts[key] >= state[THRESHOLD]:
            pair = add_pair(index, pairs, state, key >> 8, key & 255, counts[key])
            pairs[pair].places = numbers[key]
            cursors[key] = pairs[pair].first
            state[PLACES_USED] += numbers[key]
    fill_byte_places(ids, cursors, places)


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
                number = add_pair(index, pairs, state, token, other, 0)
            pairs[number].count += weights[position >> GROUP_BITS]
            pairs[number].places += 1
        position = after
    return True


@compiled(types.void, PAIRS, INDEX, INT64S)
def drop_rare_pairs(pairs, index, state):
    """Keep the pairs that reach the threshold, and give each its range of places."""
    index[:] = ABSENT
    counted = state[NUM_PAIRS]
    state[NUM_PAIRS] = 0
    state[PLACES_USED] = 0
    for old in range(counted):
        count, places = pairs[old].count, pairs[old].places
        if count >= state[THRESHOLD]:
            number = add_pair(index, pairs, state, pairs[old].left, pairs[old].right, count)
            state[PLACES_USED] += places
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


@compiled(types.boolean, BYTES, INT32S, INT64S, TOKENS, PAIRS, INDEX, INT32S, HEAP, INT64S, INT64S)
def rebuild_pairs(text, ids, weights, tokens, pairs, index, places, heap, state, sketch):
    """Count the pairs at or above the threshold anew; returns False if they are too many for the arrays.

    Args:
        text: See `layout`.
        ids: See `layout`.
        weights: See `layout`.
        tokens: See `pairs`.
        pairs: See `pairs`.
        index: See `pairs`.
        places: Room for all positions.
        heap: See `pairs`.
        state: See `pairs`.
        sketch: A power of two of counters, 2**18 or more.
    """
    sketch[:] = 0
    index[:] = ABSENT
    state[NUM_PAIRS] = state[PLACES_USED] = 0
    if state[NUM_TOKENS] == 256:
        build_byte_pairs(ids, weights, pairs, index, places, state, sketch)
    else:
        sketch_pairs(ids, weights, tokens, sketch)
        if not count_pairs(ids, weights, tokens, sketch, pairs, index, state):
            return False
        drop_rare_pairs(pairs, index, state)
        fill_places(ids, tokens, pairs, index, places)
    state[HEAP_SIZE] = state[NUM_PAIRS]
    for number in range(state[NUM_PAIRS]):
        heap[number].count = pairs[number].count
        heap[number].pair = number
    for entry in range(state[HEAP_SIZE] // 2, -1, -1):
        sift_down(text, tokens, pairs, heap, state[HEAP_SIZE], entry)
    return True


@compiled(types.void, INT32S, INT64S, TOKENS, INT64S)
def count_uses(ids, weights, tokens, uses):
    """Add up how often each token occurs."""
    position = np.int64(0)
    while position < ids.size:
        token = np.int64(ids[position])
        if token < 0:
            position += 1
            continue
        uses[token] += weights[position >> GROUP_BITS]
        position += tokens[token].length
