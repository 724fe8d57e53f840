r"""Training merges over the layout of all distinct pretokens.

One merge of (a, b) to c visits the places of the pair, left to right. Each occurrence "x a b y" takes from the pairs
(x, a) and (b, y) and gives to (x, c) and (c, y); what it takes and gives is summed by neighbor, in flat arrays,
before any pair is looked up. Then the places of those new pairs that are frequent enough are written in a second
visit. Where two occurrences touch, as in "a b a b", the second finds c to its left: that is a new (c, c), and one
(c, a) less.

The pairs are rebuilt (`rebuilding`) at the start, when the threshold must sink, when an array is full, and when two
pairs spell the same token, whose pairs then grow, unlike all others.
"""

import numpy as np

from shared.bpe.kernels.layout import GAP, GROUP_BITS, INSIDE
from shared.bpe.kernels.pairs import (
    ABSENT,
    HEAP,
    INDEX,
    LEVEL,
    NUM_MERGES,
    NUM_PAIRS,
    NUM_TOKENS,
    PAIRS,
    PLACES_USED,
    THRESHOLD,
    TOKENS,
    add_pair,
    find_pair,
    free_places,
    pop_best,
    push,
)
from shared.bpe.kernels.spellings import add_spelling, describe_token, find_spelling
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import prefetch
from shared.kernels.types import BYTES, INT32S, INT64S

# What became of `learn_merges`.
DONE, DRY, FULL, DUPLICATE, RESERVED = range(5)

# By neighboring token: the weight and the number of the occurrences beside it. Once the counts are settled, `places`
# is where the next place of its new pair is written, ABSENT if that is not watched.
NEIGHBOR = np.dtype([("weight", "i8"), ("places", "i8")])
NEIGHBORS = types.Array(NEIGHBOR)

PREFETCH_DISTANCE = 16  # occurrences


@compiled(types.int64, INT32S, types.int64, inline=True)
def token_before(ids, position):
    """The token that ends where another begins, or GAP."""
    last = np.int64(ids[position - 1])
    if last >= 0 or last == GAP:
        return last
    return np.int64(ids[position + last])


@compiled(types.int64, INT32S, types.int64, inline=True)
def length_before(ids, position):
    """The length of the token that ends where another begins."""
    last = np.int64(ids[position - 1])
    return 1 if last >= 0 else -last


@compiled(types.void, NEIGHBORS, INT64S, types.int64, types.int64, inline=True)
def note_neighbor(neighbors, touched, token, weight):
    """Add an occurrence beside a token; `touched` lists the tokens, its number first."""
    if neighbors[token].places == 0:
        touched[0] += 1
        touched[touched[0]] = token
    neighbors[token].places += 1
    neighbors[token].weight += weight


@compiled(
    types.UniTuple(types.int64, ("occurrences", "weight", "overlaps", "overlap_weight")),
    *(INT32S, INT64S, TOKENS, PAIRS, INT32S, types.int64, types.int64, NEIGHBORS, NEIGHBORS, INT64S, INT64S),
)
def replace_pair(ids, weights, tokens, pairs, places, number, merged, left, right, touched_left, touched_right):
    """Write the merged token over every occurrence of a pair, and note the neighbors.

    Returns:
        The number of occurrences, whose positions are now the first places of the pair, and their weight; and the same
        of those that follow another occurrence directly.
    """
    pair = pairs[number]
    a, b, first = pair.left, pair.right, pair.first
    left_length = tokens[a].length
    length = left_length + tokens[b].length
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
        weight = weights[position >> GROUP_BITS]
        before = token_before(ids, position)
        if before == merged:
            overlap_weight += weight
            overlaps += 1
        elif before != GAP:
            note_neighbor(left, touched_left, before, weight)
        after = np.int64(ids[position + length])
        if after != GAP:
            note_neighbor(right, touched_right, after, weight)
        ids[position] = merged
        ids[middle] = INSIDE
        ids[position + length - 1] = -length
        places[first + done] = position
        done += 1
        total_weight += weight
    return done, total_weight, overlaps, overlap_weight


@compiled(
    types.int64,
    *(BYTES, TOKENS, INDEX, PAIRS, HEAP, INT64S, types.int64, types.int64, types.int64, types.int64),
)
def add_if_frequent(text, tokens, index, pairs, heap, state, left, right, count, places):
    """Enter a new pair if it is frequent enough, and return where its places go, else ABSENT."""
    if count < state[THRESHOLD]:
        return ABSENT
    number = add_pair(index, pairs, state, left, right, count, places)
    if count >= state[LEVEL]:
        push(text, tokens, pairs, heap, state, number)
    return pairs[number].first


@compiled(types.void, PAIRS, INDEX, types.int64, types.int64, types.int64)
def decrement(pairs, index, left, right, count):
    """Lower the count of a pair, if it is known."""
    number = find_pair(index, pairs, left, right)
    if number != ABSENT:
        pairs[number].count -= count


@compiled(
    types.boolean,
    *(BYTES, TOKENS, INDEX, PAIRS, HEAP, INT64S, types.int64, types.int64, types.int64, types.int64),
    *(NEIGHBORS, NEIGHBORS, INT64S, INT64S),
)
def settle_counts(
    text, tokens, index, pairs, heap, state, number, merged, overlaps, overlap_weight,
    left, right, touched_left, touched_right,
):  # fmt: skip
    """Lower the counts of the pairs that a merge took from, and enter those that it gave to.

    Returns:
        Whether any pair was entered.
    """
    a, b = pairs[number].left, pairs[number].right
    before = state[NUM_PAIRS]
    for entry in range(1, touched_left[0] + 1):
        token = touched_left[entry]
        neighbor = left[token]
        decrement(pairs, index, token, a, neighbor.weight)
        neighbor.places = add_if_frequent(
            text, tokens, index, pairs, heap, state, token, merged, neighbor.weight, neighbor.places
        )
    for entry in range(1, touched_right[0] + 1):
        token = touched_right[entry]
        neighbor = right[token]
        decrement(pairs, index, b, token, neighbor.weight)
        if token == a:
            neighbor.weight -= overlap_weight
            neighbor.places -= overlaps
        neighbor.places = add_if_frequent(
            text, tokens, index, pairs, heap, state, merged, token, neighbor.weight, neighbor.places
        )
    left[merged].places = add_if_frequent(
        text, tokens, index, pairs, heap, state, merged, merged, overlap_weight, overlaps
    )
    pairs[number].count = 0
    return state[NUM_PAIRS] > before


@compiled(
    types.void,
    *(INT32S, TOKENS, INT32S, types.int64, types.int64, types.int64, NEIGHBORS, NEIGHBORS),
)
def write_places(ids, tokens, places, first, count, merged, left, right):
    """Write the places of the pairs that a merge has entered."""
    length = tokens[merged].length
    end = first + count
    for place in range(first, end):
        prefetch(ids, np.int64(places[min(place + PREFETCH_DISTANCE, end - 1)]))
        position = np.int64(places[place])
        before = token_before(ids, position)
        if before != GAP and left[before].places != ABSENT:
            places[left[before].places] = position - length_before(ids, position)
            left[before].places += 1
        after = np.int64(ids[position + length])
        if after != GAP and after != merged and right[after].places != ABSENT:
            places[right[after].places] = position
            right[after].places += 1


@compiled(types.void, NEIGHBORS, INT64S)
def forget_neighbors(neighbors, touched):
    """Make ready for the next merge."""
    for entry in range(1, touched[0] + 1):
        neighbors[touched[entry]].weight = 0
        neighbors[touched[entry]].places = 0
    touched[0] = 0


@compiled(
    types.int64,
    *(BYTES, INT32S, INT64S, TOKENS, INDEX, PAIRS, INDEX, INT32S, HEAP, INT64S),
    *(NEIGHBORS, NEIGHBORS, INT64S, INT64S, INT32S, INT64S, types.int64, types.int64),
)
def learn_merges(
    text, ids, weights, tokens, spellings, pairs, index, places, heap, state,
    left, right, touched_left, touched_right, merges, uses, vocab_size, max_merges,
):  # fmt: skip
    """Learn merges until there are `vocab_size` tokens or `max_merges` merges, or until the pairs must be rebuilt.

    Args:
        text: See `layout`.
        ids: See `layout`.
        weights: See `layout`.
        tokens: See `pairs`; those from `vocab_size` on are spellings that no merge may give.
        spellings: Index of tokens by their bytes.
        pairs: See `pairs`.
        index: See `pairs`.
        places: See `pairs`.
        heap: See `pairs`.
        state: See `pairs`.
        left: By token; all zero.
        right: The same.
        touched_left: Room for every token and one more.
        touched_right: The same.
        merges: Left and right token in turn, for at least `max_merges` merges.
        uses: Occurrences by token.
        vocab_size: Tokens wanted.
        max_merges: Merges wanted before returning.

    Returns:
        DONE: as many tokens or merges as wanted. DRY: no pair reaches the threshold. FULL or DUPLICATE: the pairs must
        be rebuilt. RESERVED: the last merge, which is not made, would spell a token that no merge may give.
    """
    while state[NUM_TOKENS] < vocab_size and state[NUM_MERGES] < max_merges:
        number = pop_best(text, tokens, pairs, heap, state)
        if number == ABSENT:
            return DRY
        a, b = pairs[number].left, pairs[number].right
        merges[2 * state[NUM_MERGES]] = a
        merges[2 * state[NUM_MERGES] + 1] = b
        state[NUM_MERGES] += 1
        merged = find_spelling(text, tokens, spellings, a, b)
        if merged >= vocab_size:
            return RESERVED
        is_new = merged == ABSENT
        if is_new:
            merged = state[NUM_TOKENS]
            state[NUM_TOKENS] += 1
            tokens[merged].length = tokens[a].length + tokens[b].length
        done, total_weight, overlaps, overlap_weight = replace_pair(
            ids, weights, tokens, pairs, places, number, merged, left, right, touched_left, touched_right
        )
        uses[a] -= total_weight
        uses[b] -= total_weight
        uses[merged] += total_weight
        if is_new:
            # Its first occurrence spells it from now on.
            describe_token(text, tokens, merged, places[pairs[number].first], tokens[merged].length)
            add_spelling(tokens, spellings, merged)
        room = touched_left[0] + touched_right[0] + 1
        fits = state[NUM_PAIRS] + room <= pairs.size and state[PLACES_USED] + 3 * done <= places.size
        if is_new and fits and settle_counts(
            text, tokens, index, pairs, heap, state, number, merged, overlaps, overlap_weight,
            left, right, touched_left, touched_right,
        ):  # fmt: skip
            write_places(ids, tokens, places, pairs[number].first, done, merged, left, right)
        free_places(state, pairs[number].first, pairs[number].places)
        forget_neighbors(left, touched_left)
        forget_neighbors(right, touched_right)
        left[merged].places = 0
        if not is_new:
            return DUPLICATE
        if not fits:
            return FULL
    return DONE
