"""Whole passes over the scores of a row and their weights; each is compiled to vector instructions."""

import numpy as np

from services.inference.engine.sampler.kernels.arrays import BLOCK, LogitArray
from services.inference.engine.sampler.kernels.operations import (
    bits,
    bits32,
    from_bits,
    from_bits32,
    multiply_add,
    sum_any_order,
)
from shared.kernels.compiling import compiled, inlined
from shared.kernels.types import Float32Array, Float64Array, Int32Array, float32, float64, int32, int64

_INFINITY = 0x7F800000  # bits of +inf in float32
_MAGNITUDE = 0x7FFFFFFF
_NOT_A_NUMBER = float("nan")

_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_LEAST = -_MAGNITUDE - 1
_LOWEST = -1023.0  # the exponent of a power of two whose bits are those of 0
_TO_BITS = 1.5 * 2.0**52 + 1023  # added to an exponent, it leaves the nearest whole one, biased, in the low bits

# 2**x = 1 + x * (C1 + C2 * x + ...), a polynomial through the function at ten Chebyshev nodes of [-1/2, 1/2].
_C1, _C2 = float.fromhex("0x1.62e42fefa39f7p-1"), float.fromhex("0x1.ebfbdff82c590p-3")
_C3, _C4 = float.fromhex("0x1.c6b08d7044119p-5"), float.fromhex("0x1.3b2ab6fba385fp-7")
_C5, _C6 = float.fromhex("0x1.5d87fe908f88ap-10"), float.fromhex("0x1.4309130378460p-13")
_C7, _C8 = float.fromhex("0x1.ffcb76789860fp-17"), float.fromhex("0x1.62bfe46117445p-20")
_C9, _C10 = float.fromhex("0x1.b6571de2f2351p-24"), float.fromhex("0x1.e5e9f548e5725p-28")


@inlined
def _in_order(word: int32) -> int32:
    """Map the bits of float32 to whole numbers in the order of the floats, and back.

    Whole numbers' maximum is vectorized, unlike that of floats, which has to look at NaN.
    """
    return word ^ ((word >> 31) & _MAGNITUDE)


@inlined
def _peak_of(best: int32, magnitude: int32) -> float32:
    """The float that is greatest in order; NaN if a magnitude is beyond infinity."""
    return _NOT_A_NUMBER if magnitude > _INFINITY else from_bits32(_in_order(best))


@compiled
def copy_scores(logits: LogitArray, start: int64, scores: Float32Array, size: int64) -> float32:
    """Take a row's logits, and return the greatest one; NaN if there is one."""
    best, magnitude = np.int32(_LEAST), np.int32(0)
    for index in range(size):
        score = logits[start + index]
        scores[index] = score
        best = max(best, _in_order(bits32(score)))
        magnitude = max(magnitude, np.int32(bits32(score) & _MAGNITUDE))
    return _peak_of(best, magnitude)


@compiled
def greatest(scores: Float32Array) -> float32:
    """The greatest score; NaN if there is one."""
    best, magnitude = np.int32(_LEAST), np.int32(0)
    for index in range(len(scores)):
        best = max(best, _in_order(bits32(scores[index])))
        magnitude = max(magnitude, np.int32(bits32(scores[index]) & _MAGNITUDE))
    return _peak_of(best, magnitude)


@compiled
def first_of(scores: Float32Array, score: float32) -> int64:
    """The lowest id with this score, which there is."""
    to_end = np.int32(0)  # the greatest distance to the end: a maximum is vectorized, unlike a way out of the loop
    for index in range(len(scores)):
        distance = np.int32(len(scores) - index)
        to_end = max(to_end, distance if scores[index] == score else np.int32(0))
    return len(scores) - to_end


@compiled
def add_bias(scores: Float32Array, bias: Float32Array, start: int64, size: int64) -> None:
    """Add a row's bias."""
    for index in range(size):
        scores[index] += bias[start + index]


@inlined
def _power_of_two(exponent: float64) -> float64:
    """2**exponent, off by less than 1e-15 of it; 0 for `_LOWEST`."""
    rounded = exponent + _TO_BITS
    rest = exponent - (rounded - _TO_BITS)
    value = multiply_add(_C10, rest, _C9)
    value = multiply_add(value, rest, _C8)
    value = multiply_add(value, rest, _C7)
    value = multiply_add(value, rest, _C6)
    value = multiply_add(value, rest, _C5)
    value = multiply_add(value, rest, _C4)
    value = multiply_add(value, rest, _C3)
    value = multiply_add(value, rest, _C2)
    value = multiply_add(value, rest, _C1)
    value = multiply_add(value, rest, 1.0)
    return value * from_bits(bits(rounded) << 52)


@compiled
def fill_weights(
    scores: Float32Array, weights: Float64Array, sums: Float64Array, peak: float64, inverse_temperature: float64
) -> float64:
    """Compute exp((score - peak) / temperature), and return the sum."""
    to_exponent = inverse_temperature * _LOG2_E
    total = 0.0
    for block in range(len(sums)):
        block_sum = 0.0
        for offset in range(BLOCK):
            index = block * BLOCK + offset
            weight = _power_of_two(max((np.float64(scores[index]) - peak) * to_exponent, _LOWEST))
            weights[index] = weight
            block_sum = sum_any_order(block_sum, weight)
        sums[block] = block_sum
        total += block_sum
    return total


@compiled
def keep_likely(
    scores: Float32Array,
    weights: Float64Array,
    sums: Float64Array,
    cut: float32,
    peak: float64,
    inverse_temperature: float64,
    log_min_p: float64,
) -> float64:
    """Zero the weights of scores below `cut` and of those that min_p removes, and return the sum of the others."""
    total = 0.0
    for block in range(len(sums)):
        block_sum = 0.0
        for offset in range(BLOCK):
            index = block * BLOCK + offset
            score = scores[index]
            scaled = (np.float64(score) - peak) * inverse_temperature
            weight = weights[index] if score >= cut else 0.0
            weight = weight if scaled >= log_min_p else 0.0
            weights[index] = weight
            block_sum = sum_any_order(block_sum, weight)
        sums[block] = block_sum
        total += block_sum
    return total


@compiled
def drop_ties(scores: Float32Array, weights: Float64Array, cut: float32, kept: int64) -> None:
    """Zero the weights of ids with the score `cut` except the lowest `kept` ids."""
    for index in range(len(scores)):
        if scores[index] == cut:
            kept -= 1
            if kept < 0:
                weights[index] = 0.0


@compiled
def pick(weights: Float64Array, sums: Float64Array, target: float64) -> int64:
    """The first id at which the weights so far sum to more than `target`, or the last one that has any."""
    before, block, last = 0.0, 0, -1
    while block < len(sums):
        if sums[block] > 0.0:
            last = block
            if before + sums[block] > target:
                break
            before += sums[block]
        block += 1
    token = -1
    for index in range(last * BLOCK, (last + 1) * BLOCK):
        if weights[index] > 0.0:
            token = index
            if before + weights[index] > target:
                break
            before += weights[index]
    return token


@compiled
def fill_buckets(scores: Float32Array, buckets: Int32Array, peak: float32, scale: float64, num_buckets: int64) -> None:
    """Sort scores into classes by their distance to the peak, times `scale`; -inf into one of its own."""
    for index in range(len(scores)):
        score = scores[index]
        distance = min((np.float64(peak) - np.float64(score)) * scale, num_buckets - 1.0)
        buckets[index] = np.int32(distance) if score > -float("inf") else num_buckets
