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

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.kernels.compiling import compiled, inlined
from shared.kernels.types import Array, Bytes, Int32Array, Int64Array, boolean, int64, uint64

TOKEN = np.dtype([("place", "i8"), ("length", "i8"), ("prefix", "u8"), ("hash", "u8"), ("power", "u8")])
PAIR = np.dtype([("left", "i4"), ("right", "i4"), ("count", "i8"), ("first", "i8"), ("places", "i8")])
HEAP_ENTRY = np.dtype([("count", "i8"), ("pair", "i8")])

Heap = Annotated[NDArray[Any], Array(HEAP_ENTRY)]


class Tokens(NamedTuple):
    """The tokens so far, by id.

    Attributes:
        text: See `layout`.
        entries: TOKEN of each; those behind the vocabulary are spellings that no merge may give.
        spellings: An index of them by their bytes, see `spellings`.
        uses: Occurrences of each; its size is that of the vocabulary wanted.
    """

    text: Bytes
    entries: Annotated[NDArray[Any], Array(TOKEN)]
    spellings: Int32Array
    uses: Int64Array


class Pairs(NamedTuple):
    """The pairs that are tracked, see the module; `state` has the numbers that change."""

    entries: Annotated[NDArray[Any], Array(PAIR)]
    index: Int32Array
    places: Int32Array
    heap: Heap
    state: Int64Array


ABSENT = -1
LEVEL_PART = 8  # a level lies below the highest count by one part in so many of it

# Indices into the state of training.
NUM_TOKENS, NUM_PAIRS, PLACES_USED, FREE_FIRST, FREE_END, HEAP_SIZE, NUM_MERGES, THRESHOLD, LEVEL = range(9)
STATE_SIZE = 9

_MIX = np.uint64(0x9E3779B97F4A7C15)


@inlined
def pair_slot(left: int64, right: int64, size: int64) -> int64:
    """The first place to look for a pair in an index of a size that is a power of two."""
    mixed = (np.uint64(left) << np.uint64(32) | np.uint64(right)) * _MIX
    return np.int64((mixed ^ (mixed >> np.uint64(32))) * _MIX >> np.uint64(20)) & (size - 1)


@compiled
def find_pair(pairs: Pairs, left: int64, right: int64) -> int64:
    """The number of a pair, or ABSENT."""
    index = pairs.index
    slot = pair_slot(left, right, index.size)
    while index[slot] != ABSENT:
        pair = pairs.entries[index[slot]]
        if pair.left == left and pair.right == right:
            return index[slot]
        slot = slot + 1 & index.size - 1
    return ABSENT


@inlined
def take_places(state: Int64Array, count: int64) -> int64:
    """Where so many places can be written, for which there is room."""
    first = state[FREE_FIRST]
    if first + count <= state[FREE_END]:
        state[FREE_FIRST] = first + count
        return first
    first = state[PLACES_USED]
    state[PLACES_USED] = first + count
    return first


@inlined
def free_places(state: Int64Array, first: int64, count: int64) -> None:
    """Let places be used again, if they are more than those that are free already."""
    if count > state[FREE_END] - state[FREE_FIRST]:
        state[FREE_FIRST] = first
        state[FREE_END] = first + count


@compiled
def add_pair(pairs: Pairs, left: int64, right: int64, count: int64, places: int64) -> int64:
    """Enter a new pair, for which there is room; returns its number."""
    index, state = pairs.index, pairs.state
    slot = pair_slot(left, right, index.size)
    while index[slot] != ABSENT:
        slot = slot + 1 & index.size - 1
    number = state[NUM_PAIRS]
    state[NUM_PAIRS] += 1
    index[slot] = number
    pair = pairs.entries[number]
    pair.left = left
    pair.right = right
    pair.count = count
    pair.first = take_places(state, places)
    pair.places = places
    return number


@compiled
def forget_pairs(pairs: Pairs) -> None:
    """Make room for all pairs anew."""
    state = pairs.state
    pairs.index[:] = ABSENT
    state[NUM_PAIRS] = state[PLACES_USED] = state[FREE_FIRST] = state[FREE_END] = state[HEAP_SIZE] = 0


@compiled
def spelling_prefix(text: Bytes, place: int64, length: int64) -> uint64:
    """The first eight bytes as a number that orders as they do; shorter spellings are filled up with zeros."""
    prefix = np.uint64(0)
    for offset in range(8):
        prefix = prefix << np.uint64(8)
        if offset < length:
            prefix |= np.uint64(text[place + offset])
    return prefix


@compiled
def compare_tokens(tokens: Tokens, one: int64, other: int64) -> int64:
    """Below, equal to or above zero as the bytes of one token are less than, equal to or greater than the other's."""
    if one == other:
        return 0
    first, second = tokens.entries[one], tokens.entries[other]
    if first.prefix != second.prefix:
        return 1 if first.prefix > second.prefix else -1
    for offset in range(min(first.length, second.length)):
        difference = np.int64(tokens.text[first.place + offset]) - np.int64(tokens.text[second.place + offset])
        if difference != 0:
            return difference
    return first.length - second.length


@compiled
def comes_first(tokens: Tokens, pairs: Pairs, one: int64, other: int64) -> boolean:
    """Whether an entry of the heap goes before another: a higher count, or the greater pair of byte strings."""
    heap = pairs.heap
    if heap[one].count != heap[other].count:
        return heap[one].count > heap[other].count
    first, second = pairs.entries[heap[one].pair], pairs.entries[heap[other].pair]
    order = compare_tokens(tokens, first.left, second.left)
    if order == 0:
        order = compare_tokens(tokens, first.right, second.right)
    return order > 0


@compiled
def swap(heap: Heap, one: int64, other: int64) -> None:
    """Exchange two entries."""
    count, pair = heap[one].count, heap[one].pair
    heap[one].count, heap[one].pair = heap[other].count, heap[other].pair
    heap[other].count, heap[other].pair = count, pair


@compiled
def sift_down(tokens: Tokens, pairs: Pairs, entry: int64) -> None:
    """Let an entry sink to where it belongs."""
    size = pairs.state[HEAP_SIZE]
    while True:
        child = 2 * entry + 1
        if child >= size:
            return
        if child + 1 < size and comes_first(tokens, pairs, child + 1, child):
            child += 1
        if not comes_first(tokens, pairs, child, entry):
            return
        swap(pairs.heap, child, entry)
        entry = child


@compiled
def push(tokens: Tokens, pairs: Pairs, number: int64) -> None:
    """Enter a pair into the heap."""
    heap, entry = pairs.heap, pairs.state[HEAP_SIZE]
    pairs.state[HEAP_SIZE] += 1
    heap[entry].count = pairs.entries[number].count
    heap[entry].pair = number
    while entry > 0:
        parent = entry - 1 >> 1
        if not comes_first(tokens, pairs, entry, parent):
            return
        swap(heap, entry, parent)
        entry = parent


@compiled
def lower_level(tokens: Tokens, pairs: Pairs) -> None:
    """Fill the heap, which is empty, with the pairs whose counts are among the highest."""
    state, highest = pairs.state, np.int64(0)
    for number in range(state[NUM_PAIRS]):
        highest = max(highest, pairs.entries[number].count)
    state[LEVEL] = max(state[THRESHOLD], highest - highest // LEVEL_PART)
    for number in range(state[NUM_PAIRS]):
        if pairs.entries[number].count >= state[LEVEL]:
            push(tokens, pairs, number)


@compiled
def pop_best(tokens: Tokens, pairs: Pairs) -> int64:
    """Take the pair that comes next out of the heap; ABSENT if none is left at or above the threshold."""
    heap, state = pairs.heap, pairs.state
    while True:
        if state[HEAP_SIZE] == 0:
            lower_level(tokens, pairs)
            if state[HEAP_SIZE] == 0:
                return ABSENT
        number = heap[0].pair
        count = pairs.entries[number].count
        current = count == heap[0].count
        if current or count < state[LEVEL]:
            state[HEAP_SIZE] -= 1
            heap[0].count = heap[state[HEAP_SIZE]].count
            heap[0].pair = heap[state[HEAP_SIZE]].pair
        else:
            heap[0].count = count
        sift_down(tokens, pairs, 0)
        if current:
            return number
