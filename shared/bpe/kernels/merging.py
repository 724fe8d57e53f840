r"""Training merges over the layout of all distinct pretokens.

One merge of (a, b) to c visits the places of the pair, left to right. Each occurrence "x a b y" takes from the pairs
(x, a) and (b, y) and gives to (x, c) and (c, y); what it takes and gives is summed by neighbor, in flat arrays,
before any pair is looked up. Then the places of those new pairs that are frequent enough are written in a second
visit. Where two occurrences touch, as in "a b a b", the second finds c to its left: that is a new (c, c), and one
(c, a) less.

The pairs are rebuilt (`rebuilding`) at the start, when the threshold must sink, when an array is full, and when two
pairs spell the same token, whose pairs then grow, unlike all others.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.bpe.kernels.layout import GAP, GROUP_BITS, INSIDE, Layout
from shared.bpe.kernels.pairs import (
    ABSENT,
    LEVEL,
    NUM_MERGES,
    NUM_PAIRS,
    NUM_TOKENS,
    PLACES_USED,
    THRESHOLD,
    Pairs,
    Tokens,
    add_pair,
    find_pair,
    free_places,
    pop_best,
    push,
)
from shared.bpe.kernels.spellings import add_token, find_spelling
from shared.kernels.compiling import compiled, inlined
from shared.kernels.intrinsics import prefetch
from shared.kernels.types import Array, Int32Array, Int64Array, boolean, int64

# What became of `learn_merges`.
DONE, DRY, FULL, DUPLICATE, RESERVED = range(5)

NEIGHBOR = np.dtype([("weight", "i8"), ("places", "i8")])

PREFETCH_DISTANCE = 16  # occurrences


class Neighbors(NamedTuple):
    """The tokens on one side of the occurrences of a merge.

    Attributes:
        entries: By token, zero between two merges: the weight and the number of the occurrences beside it. Once the
            counts are settled, `places` is where the next place of its new pair is written, ABSENT if that is not
            tracked.
        touched: The tokens that have an entry, their number first.
    """

    entries: Annotated[NDArray[Any], Array(NEIGHBOR)]
    touched: Int64Array


class Replaced(NamedTuple):
    """Occurrences of a pair and their weight; the same of those that follow another occurrence directly."""

    occurrences: int64
    weight: int64
    overlaps: int64
    overlap_weight: int64


@inlined
def token_before(ids: Int32Array, position: int64) -> int64:
    """The token that ends where another begins, or GAP."""
    last = np.int64(ids[position - 1])
    if last >= 0 or last == GAP:
        return last
    return np.int64(ids[position + last])


@inlined
def length_before(ids: Int32Array, position: int64) -> int64:
    """The length of the token that ends where another begins."""
    last = np.int64(ids[position - 1])
    return 1 if last >= 0 else -last


@inlined
def note_neighbor(neighbors: Neighbors, token: int64, weight: int64) -> None:
    """Add an occurrence beside a token."""
    neighbor, touched = neighbors.entries[token], neighbors.touched
    if neighbor.places == 0:
        touched[0] += 1
        touched[touched[0]] = token
    neighbor.places += 1
    neighbor.weight += weight


@compiled
def replace_pair(
    layout: Layout, tokens: Tokens, pairs: Pairs, number: int64, merged: int64, left: Neighbors, right: Neighbors
) -> Replaced:
    """Write the merged token over every occurrence of a pair, and note the neighbors.

    Afterwards the positions of the occurrences are the first places of the pair.
    """
    ids, places, pair = layout.ids, pairs.places, pairs.entries[number]
    a, b, first = pair.left, pair.right, pair.first
    left_length = tokens.entries[a].length
    length = left_length + tokens.entries[b].length
    done, total_weight, overlaps, overlap_weight = 0, 0, 0, 0
    end = first + pair.places
    for place in range(first, end):
        ahead = np.int64(places[min(place + PREFETCH_DISTANCE, end - 1)])
        prefetch(ids, ahead - 1)
        prefetch(ids, ahead + length)
        position = np.int64(places[place])
        middle = position + left_length
        if ids[position] != a or ids[middle] != b:
            continue
        weight = layout.weights[position >> GROUP_BITS]
        before = token_before(ids, position)
        if before == merged:
            overlap_weight += weight
            overlaps += 1
        elif before != GAP:
            note_neighbor(left, before, weight)
        after = np.int64(ids[position + length])
        if after != GAP:
            note_neighbor(right, after, weight)
        ids[position] = merged
        ids[middle] = INSIDE
        ids[position + length - 1] = -length
        places[first + done] = position
        done += 1
        total_weight += weight
    return Replaced(done, total_weight, overlaps, overlap_weight)


@compiled
def add_if_frequent(tokens: Tokens, pairs: Pairs, left: int64, right: int64, count: int64, places: int64) -> int64:
    """Enter a new pair if it is frequent enough, and return where its places go, else ABSENT."""
    if count < pairs.state[THRESHOLD]:
        return ABSENT
    number = add_pair(pairs, left, right, count, places)
    if count >= pairs.state[LEVEL]:
        push(tokens, pairs, number)
    return pairs.entries[number].first


@compiled
def decrement(pairs: Pairs, left: int64, right: int64, count: int64) -> None:
    """Lower the count of a pair, if it is tracked."""
    number = find_pair(pairs, left, right)
    if number != ABSENT:
        pairs.entries[number].count -= count


@compiled
def settle_counts(
    tokens: Tokens,
    pairs: Pairs,
    number: int64,
    merged: int64,
    replaced: Replaced,
    left: Neighbors,
    right: Neighbors,
) -> boolean:
    """Lower the counts of the pairs that a merge took from, and enter those that it gave to.

    Returns:
        Whether any pair was entered.
    """
    a, b = pairs.entries[number].left, pairs.entries[number].right
    before = pairs.state[NUM_PAIRS]
    for entry in range(1, left.touched[0] + 1):
        token = left.touched[entry]
        neighbor = left.entries[token]
        decrement(pairs, token, a, neighbor.weight)
        neighbor.places = add_if_frequent(tokens, pairs, token, merged, neighbor.weight, neighbor.places)
    for entry in range(1, right.touched[0] + 1):
        token = right.touched[entry]
        neighbor = right.entries[token]
        decrement(pairs, b, token, neighbor.weight)
        if token == a:
            neighbor.weight -= replaced.overlap_weight
            neighbor.places -= replaced.overlaps
        neighbor.places = add_if_frequent(tokens, pairs, merged, token, neighbor.weight, neighbor.places)
    doubled = add_if_frequent(tokens, pairs, merged, merged, replaced.overlap_weight, replaced.overlaps)
    left.entries[merged].places = doubled
    pairs.entries[number].count = 0
    return pairs.state[NUM_PAIRS] > before


@compiled
def write_places(
    ids: Int32Array, length: int64, places: Int32Array, first: int64, count: int64, left: Neighbors, right: Neighbors
) -> None:
    """Write the places of the pairs that a merge has entered; its token has a length, and its own places."""
    end = first + count
    for place in range(first, end):
        prefetch(ids, np.int64(places[min(place + PREFETCH_DISTANCE, end - 1)]))
        position = np.int64(places[place])
        merged = ids[position]
        before = token_before(ids, position)
        if before != GAP and left.entries[before].places != ABSENT:
            places[left.entries[before].places] = position - length_before(ids, position)
            left.entries[before].places += 1
        after = np.int64(ids[position + length])
        if after != GAP and after != merged and right.entries[after].places != ABSENT:
            places[right.entries[after].places] = position
            right.entries[after].places += 1


@compiled
def forget_neighbors(neighbors: Neighbors) -> None:
    """Make ready for the next merge."""
    touched = neighbors.touched
    for entry in range(1, touched[0] + 1):
        neighbors.entries[touched[entry]].weight = 0
        neighbors.entries[touched[entry]].places = 0
    touched[0] = 0


@compiled
def learn_merges(
    layout: Layout, tokens: Tokens, pairs: Pairs, left: Neighbors, right: Neighbors, merges: Int32Array
) -> int64:
    """Learn merges until there are as many tokens as wanted, or `merges` is full, or the pairs must be rebuilt.

    Args:
        layout: The pretokens.
        tokens: The vocabulary so far.
        pairs: Those that are tracked.
        left: Room for the tokens before a merge.
        right: Room for those behind it.
        merges: Gets the left and the right token of each merge.

    Returns:
        DONE: as many tokens or merges as wanted. DRY: no pair reaches the threshold. FULL or DUPLICATE: the pairs must
        be rebuilt. RESERVED: the last merge, which is not made, would spell a token that no merge may give.
    """
    state, vocab_size = pairs.state, tokens.uses.size
    while state[NUM_TOKENS] < vocab_size and 2 * state[NUM_MERGES] < merges.size:
        number = pop_best(tokens, pairs)
        if number == ABSENT:
            return DRY
        pair = pairs.entries[number]
        a, b = pair.left, pair.right
        merges[2 * state[NUM_MERGES]] = a
        merges[2 * state[NUM_MERGES] + 1] = b
        state[NUM_MERGES] += 1
        merged = find_spelling(tokens, a, b)
        if merged >= vocab_size:
            return RESERVED
        is_new = merged == ABSENT
        if is_new:
            merged = state[NUM_TOKENS]
            state[NUM_TOKENS] += 1
        length = tokens.entries[a].length + tokens.entries[b].length
        replaced = replace_pair(layout, tokens, pairs, number, merged, left, right)
        tokens.uses[a] -= replaced.weight
        tokens.uses[b] -= replaced.weight
        tokens.uses[merged] += replaced.weight
        if is_new:
            # Its first occurrence spells it from now on.
            add_token(tokens, merged, pairs.places[pair.first], length)
        done = replaced.occurrences
        room = left.touched[0] + right.touched[0] + 1
        fits = state[NUM_PAIRS] + room <= pairs.entries.size and state[PLACES_USED] + 3 * done <= pairs.places.size
        if is_new and fits and settle_counts(tokens, pairs, number, merged, replaced, left, right):
            write_places(layout.ids, length, pairs.places, pair.first, done, left, right)
        free_places(state, pair.first, pair.places)
        forget_neighbors(left)
        forget_neighbors(right)
        left.entries[merged].places = 0
        if not is_new:
            return DUPLICATE
        if not fits:
            return FULL
    return DONE
