"""Where to cut the scores of a row so that the most likely ids have so much of the mass, or are so many.

Instead of sorting a vocabulary: scores fall into classes by their distance to the greatest one; the class in which the
sum of the classes' masses crosses what is wanted is divided again by the distance to its own greatest score, until few
ids are left, or equal ones. Every division puts the greatest and the least score apart, so it ends, and the order of
float32 scores is exact whatever the rounding of the classes' edges.
"""

import numpy as np

from services.inference.engine.sampler.kernels.arrays import NUM_BUCKETS, Scratch
from services.inference.engine.sampler.kernels.operations import equal_mask
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import trailing_zeros
from shared.kernels.types import Float32Array, Float64Array, Int32Array, boolean, float32, float64, int64

_FEW = 24
_STRIDE = NUM_BUCKETS + 1
_INFINITY = float("inf")


@compiled
def _sum_classes(buckets: Int32Array, weights: Float64Array, masses: Float64Array, by_count: boolean) -> None:
    # Four sums of each class, so that equal classes in a row need not wait for one another.
    for index in range(len(masses)):
        masses[index] = 0.0
    for start in range(0, len(buckets), 4):
        for lane in range(4):
            place = lane * _STRIDE + buckets[start + lane]
            masses[place] += 1.0 if by_count else weights[start + lane]
    for bucket in range(NUM_BUCKETS):
        masses[bucket] += masses[_STRIDE + bucket] + masses[2 * _STRIDE + bucket] + masses[3 * _STRIDE + bucket]


@compiled
def _narrow(scratch: Scratch, count: int64, high: float32, low: float32, wanted: float64, by_count: boolean) -> int64:
    """Keep those of the first `count` members whose class crosses what is wanted, and return how many they are.

    What the classes before have is left in `scratch.cut[0]`.
    """
    scores, weights, members, masses = scratch.scores, scratch.weights, scratch.members, scratch.masses
    scale = (NUM_BUCKETS - 1) / (np.float64(high) - np.float64(low))
    for bucket in range(NUM_BUCKETS):
        masses[bucket] = 0.0
    for position in range(count):
        token = members[position]
        masses[np.int64((np.float64(high) - scores[token]) * scale)] += 1.0 if by_count else weights[token]
    before, bucket = 0.0, 0
    last = np.int64((np.float64(high) - low) * scale)
    # Rounding may leave the sum of all just below what is wanted: then it is the last class.
    while bucket < last and before + masses[bucket] < wanted:
        before += masses[bucket]
        bucket += 1
    scratch.cut[0] = before
    kept = 0
    for position in range(count):
        token = members[position]
        members[kept] = token
        kept += np.int64((np.float64(high) - scores[token]) * scale) == bucket
    return kept


@compiled
def _sort(members: Int32Array, scores: Float32Array, count: int64) -> None:
    """Sort few members by falling score."""
    for position in range(1, count):
        token, place = members[position], position
        while place > 0 and scores[members[place - 1]] < scores[token]:
            members[place] = members[place - 1]
            place -= 1
        members[place] = token


@compiled
def _walk(scratch: Scratch, count: int64, wanted: float64, by_count: boolean) -> None:
    """Go through sorted members until they have what is wanted."""
    scores, weights, members = scratch.scores, scratch.weights, scratch.members
    mass, last, group = 0.0, 0, 0
    for position in range(count):
        last = position
        if scores[members[position]] != scores[members[group]]:
            group = position
        mass += 1.0 if by_count else weights[members[position]]
        if mass >= wanted:
            break
    cut = scores[members[group]]
    ties = 0
    for position in range(group, count):
        ties += scores[members[position]] == cut
    scratch.cut[0], scratch.cut[1], scratch.cut[2] = cut, last - group + 1, ties


@compiled
def _gather(buckets: Int32Array, members: Int32Array, bucket: int64) -> int64:
    """Make members of the ids in a class, and return how many they are."""
    count = 0
    for start in range(0, len(buckets), 64):
        mask = equal_mask(buckets, start, np.int32(bucket))
        while mask != 0:
            members[count] = start + trailing_zeros(mask)
            count += 1
            mask &= mask - np.uint64(1)
    return count


@compiled
def find_cut(scratch: Scratch, wanted: float64, by_count: boolean) -> None:
    """Find the smallest number of the most likely ids that have `wanted` of the weights together, or are so many.

    Writes to `scratch.cut`: the least score that is kept, how many of the ids with this score are kept, and how many
    there are. Keeps all where all do not reach what is wanted. Needs `scratch.buckets`.
    """
    scores, members, masses, buckets = scratch.scores, scratch.members, scratch.masses, scratch.buckets
    _sum_classes(buckets, scratch.weights, masses, by_count)
    before, bucket = 0.0, 0
    while bucket < NUM_BUCKETS and before + masses[bucket] < wanted:
        before += masses[bucket]
        bucket += 1
    if bucket == NUM_BUCKETS:
        scratch.cut[0], scratch.cut[1], scratch.cut[2] = -_INFINITY, 0, 0
        return
    wanted -= before
    count = _gather(buckets, members, bucket)
    while count > _FEW:
        high, low = scores[members[0]], scores[members[0]]
        for position in range(count):
            high = max(high, scores[members[position]])
            low = min(low, scores[members[position]])
        if high == low:
            weight = 1.0 if by_count else scratch.weights[members[0]]
            kept = min(float(count), max(1.0, np.ceil(wanted / weight)))
            scratch.cut[0], scratch.cut[1], scratch.cut[2] = high, kept, count
            return
        count = _narrow(scratch, count, high, low, wanted, by_count)
        wanted -= scratch.cut[0]
    _sort(members, scores, count)
    _walk(scratch, count, wanted, by_count)
