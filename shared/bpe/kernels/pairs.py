r"""The pairs of neighboring tokens that training tracks, and which of them comes next.

    tokens  | place, length, prefix, spelling hash |      by id: where in the text the bytes are, and what compares them
    pairs   | left, right, count, first, places |         in order of creation
    index   hash of (left, right) -> number of the pair, open addressing
    places  | positions of pair 0 ... | positions of pair 1 ... |     ascending within a pair; some may be out of date
    heap    | count, pair |                               the most frequent on top; counts may be out of date, too high

A pair and all its occurrences appear when a merge makes the newer of its tokens: from then on its count only falls. So
a heap that corrects what comes to the top, and a threshold below which a new pair is dropped, lose nothing until the
threshold itself is reached. The heap is kept small: only pairs at or above a level are in it, and when it is empty the
level sinks. The part of `places` that a merged pair leaves is reused by the pairs that the next merge creates.
"""

import numpy as np

from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.types import BYTES, INT64S

TOKEN = np.dtype([("place", "i8"), ("length", "i8"), ("prefix", "u8"), ("hash", "u8"), ("power", "u8")])
PAIR = np.dtype([("left", "i4"), ("right", "i4"), ("count", "i8"), ("first", "i8"), ("places", "i8")])
HEAP_ENTRY = np.dtype([("count", "i8"), ("pair", "i8")])

TOKENS = types.Array(TOKEN)
PAIRS = types.Array(PAIR)
HEAP = types.Array(HEAP_ENTRY)
INDEX = types.Array(types.int32)

ABSENT = -1
LEVEL_PART = 8  # a level lies below the highest count by one part in so many of it

# Indices into the state of training.
NUM_TOKENS, NUM_PAIRS, PLACES_USED, FREE_FIRST, FREE_END, HEAP_SIZE, NUM_MERGES, THRESHOLD, LEVEL = range(9)
STATE_SIZE = 9

_MIX = np.uint64(0x9E3779B97F4A7C15)


@compiled(types.int64, types.int64, types.int64, types.int64, inline=True)
def pair_slot(left, right, size):
    """The first place to look for a pair in an index of a size that is a power of two."""
    mixed = (np.uint64(left) << np.uint64(32) | np.uint64(right)) * _MIX
    return np.int64((mixed ^ (mixed >> np.uint64(32))) * _MIX >> np.uint64(20)) & (size - 1)


@compiled(types.int64, INDEX, PAIRS, types.int64, types.int64)
def find_pair(index, pairs, left, right):
    """The number of a pair, or ABSENT."""
    slot = pair_slot(left, right, index.size)
    while index[slot] != ABSENT:
        pair = pairs[index[slot]]
        if pair.left == left and pair.right == right:
            return index[slot]
        slot = slot + 1 & index.size - 1
    return ABSENT


@compiled(types.int64, INT64S, types.int64, inline=True)
def take_places(state, count):
    """Where so many places can be written, for which there is room."""
    first = state[FREE_FIRST]
    if first + count <= state[FREE_END]:
        state[FREE_FIRST] = first + count
        return first
    first = state[PLACES_USED]
    state[PLACES_USED] = first + count
    return first


@compiled(types.void, INT64S, types.int64, types.int64, inline=True)
def free_places(state, first, count):
    """Let places be used again, if they are more than those that are free already."""
    if count > state[FREE_END] - state[FREE_FIRST]:
        state[FREE_FIRST] = first
        state[FREE_END] = first + count


@compiled(types.int64, INDEX, PAIRS, INT64S, types.int64, types.int64, types.int64, types.int64)
def add_pair(index, pairs, state, left, right, count, places):
    """Enter a new pair, for which there is room; returns its number."""
    slot = pair_slot(left, right, index.size)
    while index[slot] != ABSENT:
        slot = slot + 1 & index.size - 1
    number = state[NUM_PAIRS]
    state[NUM_PAIRS] += 1
    index[slot] = number
    pair = pairs[number]
    pair.left = left
    pair.right = right
    pair.count = count
    pair.first = take_places(state, places)
    pair.places = places
    return number


@compiled(types.void, INDEX, INT64S)
def forget_pairs(index, state):
    """Make room for all pairs anew."""
    index[:] = ABSENT
    state[NUM_PAIRS] = state[PLACES_USED] = state[FREE_FIRST] = state[FREE_END] = state[HEAP_SIZE] = 0


@compiled(types.uint64, BYTES, types.int64, types.int64)
def spelling_prefix(text, place, length):
    """The first eight bytes as a number that orders as they do; shorter spellings are filled up with zeros."""
    prefix = np.uint64(0)
    for offset in range(8):
        prefix = prefix << np.uint64(8)
        if offset < length:
            prefix |= np.uint64(text[place + offset])
    return prefix


@compiled(types.int64, BYTES, TOKENS, types.int64, types.int64)
def compare_tokens(text, tokens, one, other):
    """Below, equal to or above zero as the bytes of one token are less than, equal to or greater than the other's."""
    if one == other:
        return 0
    first, second = tokens[one], tokens[other]
    if first.prefix != second.prefix:
        return 1 if first.prefix > second.prefix else -1
    for offset in range(min(first.length, second.length)):
        difference = np.int64(text[first.place + offset]) - np.int64(text[second.place + offset])
        if difference != 0:
            return difference
    return first.length - second.length


@compiled(types.boolean, BYTES, TOKENS, PAIRS, HEAP, types.int64, types.int64)
def comes_first(text, tokens, pairs, heap, one, other):
    """Whether an entry of the heap goes before another: a higher count, or the greater pair of byte strings."""
    if heap[one].count != heap[other].count:
        return heap[one].count > heap[other].count
    first, second = pairs[heap[one].pair], pairs[heap[other].pair]
    order = compare_tokens(text, tokens, first.left, second.left)
    if order == 0:
        order = compare_tokens(text, tokens, first.right, second.right)
    return order > 0


@compiled(types.void, HEAP, types.int64, types.int64)
def swap(heap, one, other):
    """Exchange two entries."""
    count, pair = heap[one].count, heap[one].pair
    heap[one].count, heap[one].pair = heap[other].count, heap[other].pair
    heap[other].count, heap[other].pair = count, pair


@compiled(types.void, BYTES, TOKENS, PAIRS, HEAP, types.int64, types.int64)
def sift_down(text, tokens, pairs, heap, size, entry):
    """Let an entry sink to where it belongs."""
    while True:
        child = 2 * entry + 1
        if child >= size:
            return
        if child + 1 < size and comes_first(text, tokens, pairs, heap, child + 1, child):
            child += 1
        if not comes_first(text, tokens, pairs, heap, child, entry):
            return
        swap(heap, child, entry)
        entry = child


@compiled(types.void, BYTES, TOKENS, PAIRS, HEAP, INT64S, types.int64)
def push(text, tokens, pairs, heap, state, number):
    """Enter a pair into the heap."""
    entry = state[HEAP_SIZE]
    state[HEAP_SIZE] += 1
    heap[entry].count = pairs[number].count
    heap[entry].pair = number
    while entry > 0:
        parent = entry - 1 >> 1
        if not comes_first(text, tokens, pairs, heap, entry, parent):
            return
        swap(heap, entry, parent)
        entry = parent


@compiled(types.void, BYTES, TOKENS, PAIRS, HEAP, INT64S)
def lower_level(text, tokens, pairs, heap, state):
    """Fill the heap, which is empty, with the pairs whose counts are among the highest."""
    highest = np.int64(0)
    for number in range(state[NUM_PAIRS]):
        highest = max(highest, pairs[number].count)
    state[LEVEL] = max(state[THRESHOLD], highest - highest // LEVEL_PART)
    for number in range(state[NUM_PAIRS]):
        if pairs[number].count >= state[LEVEL]:
            push(text, tokens, pairs, heap, state, number)


@compiled(types.int64, BYTES, TOKENS, PAIRS, HEAP, INT64S)
def pop_best(text, tokens, pairs, heap, state):
    """Take the pair that comes next out of the heap; ABSENT if none is left at or above the threshold."""
    while True:
        if state[HEAP_SIZE] == 0:
            lower_level(text, tokens, pairs, heap, state)
            if state[HEAP_SIZE] == 0:
                return ABSENT
        number = heap[0].pair
        count = pairs[number].count
        current = count == heap[0].count
        if current or count < state[LEVEL]:
            state[HEAP_SIZE] -= 1
            heap[0].count = heap[state[HEAP_SIZE]].count
            heap[0].pair = heap[state[HEAP_SIZE]].pair
        else:
            heap[0].count = count
        sift_down(text, tokens, pairs, heap, state[HEAP_SIZE], 0)
        if current:
            return number
