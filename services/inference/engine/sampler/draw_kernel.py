"""The draw of a token in one kernel, in Triton: what `TorchSampler` does in torch's operations, a program for each row.

A row goes through what it asks for alone: greedy ones end after the first pass over the vocabulary. Cuts of top_k and
top_p are looked for among the scores as ordered whole numbers, four ways at a time, instead of sorting them.
"""

import triton
import triton.language as tl

_LARGEST: tl.constexpr = tl.constexpr(3.4028234663852886e38)
_LOWEST: tl.constexpr = tl.constexpr(-2147483649)  # below all keys
_ROUNDS: tl.constexpr = tl.constexpr(18)  # of four ways, from 2**32 keys to one


@triton.jit
def _key(scores):
    """Whole numbers in the order of the scores; equal where they are."""
    bits = tl.where(scores == 0, 0.0, scores).to(tl.int32, bitcast=True)  # 0 and -0 are equal
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _score_row(logits, scores, valid, bias, seen, stops, fields, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Write a row's scores, and return the highest one, its lowest id, and whether the row has a distribution."""
    early, biased = tl.load(fields + 2) > 0, tl.load(fields + 6) > 0
    repetition, presence, frequency = tl.load(fields + 9), tl.load(fields + 10), tl.load(fields + 11)
    is_penalized = (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0)
    raw, peak, likeliest, is_bad = float("-inf"), float("-inf"), SIZE, 0
    for first in range(0, SIZE, BLOCK):
        ids = first + tl.arange(0, BLOCK)
        inside = ids < SIZE
        allowed = tl.load(valid + ids, inside, other=0) != 0
        score = tl.where(allowed, tl.load(logits + ids, inside, other=0.0), float("-inf"))
        is_bad = tl.maximum(is_bad, tl.max((~(score <= _LARGEST)).to(tl.int32), 0))
        raw = tl.maximum(raw, tl.max(score, 0))
        if biased:
            score += tl.load(bias + ids, inside, other=0.0)
        if early:
            score = tl.where(tl.load(stops + ids, inside, other=0) != 0, float("-inf"), score)
        if is_penalized:
            counts = tl.load(seen + ids, inside, other=0)
            value = score.to(tl.float64)
            repeated = tl.where(value > 0, value / repetition, value * repetition)
            value = tl.where(counts > 0, repeated, value)
            times = counts >> 1
            value = tl.where(times > 0, value + (-presence - frequency * times), value)
            value = tl.minimum(tl.maximum(value, -_LARGEST), _LARGEST)
            score = tl.where(tl.abs(score) <= _LARGEST, value.to(tl.float32), score)
        is_bad = tl.maximum(is_bad, tl.max((~(score <= _LARGEST)).to(tl.int32), 0))
        tl.store(scores + ids, score, inside)
        highest = tl.max(score, 0)
        lowest_id = tl.min(tl.where((score == highest) & inside, ids, SIZE), 0)
        likeliest = tl.where(highest > peak, lowest_id, likeliest)
        peak = tl.maximum(peak, highest)
    return peak, likeliest, (is_bad == 0) & (raw > float("-inf")) & (peak > float("-inf"))


@triton.jit
def _weight_of(key, peak, inverse_temperature):
    """The weight of the ids with a key."""
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.int32)
    return tl.exp((bits.to(tl.float32, bitcast=True).to(tl.float64) - peak) * inverse_temperature)


@triton.jit
def _amounts(scores, weights, a, b, c, COUNTS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Return how much the ids with keys from a, from b and from c on weigh, or how many they are."""
    from_a = tl.zeros((BLOCK,), tl.float64)
    from_b, from_c = from_a, from_a
    for first in range(0, SIZE, BLOCK):
        ids = first + tl.arange(0, BLOCK)
        inside = ids < SIZE
        key = _key(tl.load(scores + ids, inside, other=float("-inf")))
        if COUNTS:
            amount = inside.to(tl.float64)
        else:
            amount = tl.load(weights + ids, inside, other=0.0)
        from_a += tl.where(key >= a, amount, 0.0)
        from_b += tl.where(key >= b, amount, 0.0)
        from_c += tl.where(key >= c, amount, 0.0)
    return tl.sum(from_a, 0), tl.sum(from_b, 0), tl.sum(from_c, 0)  # once: a sum over a block waits for all threads


@triton.jit
def _find_cut(scores, weights, wanted, begin, top, COUNTS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Return the highest key from which on ids have the wanted amount, and the amount of those above it.

    From `begin` on they have it, and `top` is the highest key.
    """
    end = top + 1
    for _ in range(_ROUNDS):
        step = (end - begin + 3) // 4
        a, b, c = begin + step, begin + 2 * step, begin + 3 * step
        from_a, from_b, from_c = _amounts(scores, weights, a, b, c, COUNTS, SIZE, BLOCK)
        begin = tl.where(from_c >= wanted, c, tl.where(from_b >= wanted, b, tl.where(from_a >= wanted, a, begin)))
        end = tl.where(from_a < wanted, a, tl.where(from_b < wanted, b, tl.where(from_c < wanted, c, end)))
    above, _, _ = _amounts(scores, weights, begin + 1, begin + 1, begin + 1, COUNTS, SIZE, BLOCK)
    return begin, above


@triton.jit
def _running_sums(
    scores, weights, first, total, tied, cut, ties, peak, inverse_temperature, log_min_p,
    SIZE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Return a block's ids and their weights, what they and all before them weigh, and the sums at the block's end.

    Ids are kept above the cut, the first `ties` at it, and with min_p where they are likely enough.
    """
    ids = first + tl.arange(0, BLOCK)
    inside = ids < SIZE
    score = tl.load(scores + ids, inside, other=float("-inf"))
    key = _key(score)
    is_tie = (key == cut) & inside
    rank = tied + tl.cumsum(is_tie.to(tl.int64), 0)
    weight = tl.load(weights + ids, inside, other=0.0)
    is_likely = (score.to(tl.float64) - peak) * inverse_temperature >= log_min_p
    weight = tl.where(((key > cut) | (is_tie & (rank <= ties))) & is_likely, weight, 0.0)
    sums = total + tl.cumsum(weight, 0)
    return ids, weight, sums, tl.max(sums, 0), tl.max(rank, 0)


@triton.jit
def draw(
    logits, controls, valid, bias, seen, stops, scores, weights, tokens,
    SIZE: tl.constexpr, NUM_FIELDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Draw a token for a row; `controls` are those of `Batch`, `scores` and `weights` are scratch."""
    row = tl.program_id(0).to(tl.int64)
    fields = controls + row * NUM_FIELDS
    slot = tl.load(fields).to(tl.int64) * SIZE
    scores, weights = scores + row * SIZE, weights + row * SIZE
    peak, token, is_usable = _score_row(
        logits + row * SIZE, scores, valid, bias + slot, seen + slot, stops + slot, fields, SIZE, BLOCK
    )
    tl.debug_barrier()  # other threads read the scores
    if is_usable & (tl.load(fields + 4) == 0):
        uniform, inverse_temperature, log_min_p = tl.load(fields + 1), tl.load(fields + 3), tl.load(fields + 5)
        top_k, top_p = tl.load(fields + 7), tl.load(fields + 8)
        highest = peak.to(tl.float64)
        for first in range(0, SIZE, BLOCK):
            ids = first + tl.arange(0, BLOCK)
            score = tl.load(scores + ids, ids < SIZE, other=float("-inf")).to(tl.float64)
            tl.store(weights + ids, tl.exp((score - highest) * inverse_temperature), ids < SIZE)
        tl.debug_barrier()
        top = _key(peak)
        cut, ties = tl.full((), _LOWEST, tl.int64), tl.zeros((), tl.int64)
        if top_k < SIZE:
            cut, above = _find_cut(scores, weights, top_k, cut + 1, top, True, SIZE, BLOCK)
            ties = (top_k - above).to(tl.int64)
        if top_p < 1:
            above, _, _ = _amounts(scores, weights, cut + 1, cut + 1, cut + 1, False, SIZE, BLOCK)
            at_cut = tl.where(ties > 0, _weight_of(cut, highest, inverse_temperature), 0.0)
            wanted = top_p * (above + ties.to(tl.float64) * at_cut)
            if wanted <= above:
                cut, above = _find_cut(scores, weights, wanted, cut + 1, top, False, SIZE, BLOCK)
                ties = tl.full((), SIZE, tl.int64)
                at_cut = _weight_of(cut, highest, inverse_temperature)
            needed = tl.ceil((wanted - above) / tl.where(at_cut > 0, at_cut, 1.0)).to(tl.int64)
            ties = tl.minimum(ties, tl.maximum(needed, 1))
        total, tied = tl.zeros((), tl.float64), tl.zeros((), tl.int64)
        for first in range(0, SIZE, BLOCK):
            _, _, _, total, tied = _running_sums(
                scores, weights, first, total, tied, cut, ties, highest, inverse_temperature, log_min_p, SIZE, BLOCK
            )
        # The number below the sum, so that one of the ids is reached.
        target = tl.minimum(uniform * total, total * (1.0 - 1.1102230246251565e-16))
        token, before, tied = tl.full((), SIZE, tl.int32), tl.zeros((), tl.float64), tl.zeros((), tl.int64)
        for first in range(0, SIZE, BLOCK):
            ids, weight, sums, before, tied = _running_sums(
                scores, weights, first, before, tied, cut, ties, highest, inverse_temperature, log_min_p, SIZE, BLOCK
            )
            token = tl.minimum(token, tl.min(tl.where((sums > target) & (weight > 0), ids, SIZE), 0))
    is_usable = is_usable & (token < SIZE)
    if is_usable:
        count = seen + slot + token
        tl.store(count, tl.load(count) + 2)
    tl.store(tokens + row, tl.where(is_usable, token, -1).to(tl.int64))
