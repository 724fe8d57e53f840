"""Whole passes over the scores of a row and their weights; each is compiled to vector instructions."""

import numpy as np

from services.inference.engine.sampler.kernels.arrays import BLOCK
from services.inference.engine.sampler.kernels.operations import (
    bits,
    bits32,
    from_bits,
    from_bits32,
    multiply_add,
    sum_any_order,
)
from shared.kernels.compiling import compiled
from shared.kernels.types import FLOAT32S, FLOAT64S, INT32S, Array, float32, float64, int64, void

_INFINITY = 0x7F800000  # bits of +inf in float32
_MAGNITUDE = 0x7FFFFFFF
_NOT_A_NUMBER = float("nan")

_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # its last bits are 0: times a whole number it is exact
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_ROUNDER = 1.5 * 2.0**52  # added to a number, it leaves the nearest whole number in the low bits
_LOWEST = -708.0  # below it, the weight is 0


@compiled(void, Array(float32, readonly=True), int64, FLOAT32S, int64)
def copy_scores(logits, start, scores, size):
    """Take a row's logits."""
    for index in range(size):
        scores[index] = logits[start + index]


@compiled(float32, FLOAT32S)
def greatest(scores):
    """The greatest score; NaN if there is one."""
    # Bits of a float, with those of a negative one turned around, are in the order of the numbers; whole numbers'
    # maximum is vectorized, unlike that of floats, which has to look at NaN.
    best, magnitude = -_MAGNITUDE - 1, 0
    for index in range(len(scores)):
        word = bits32(scores[index])
        best = max(best, word ^ ((word >> 31) & _MAGNITUDE))
        magnitude = max(magnitude, word & _MAGNITUDE)
    if magnitude > _INFINITY:
        return _NOT_A_NUMBER
    return from_bits32(best ^ ((best >> 31) & _MAGNITUDE))


@compiled(int64, FLOAT32S, float32)
def first_of(scores, score):
    """The lowest id with this score, which there is."""
    to_end = np.int32(0)  # the greatest distance to the end: a maximum is vectorized, unlike a way out of the loop
    for index in range(len(scores)):
        distance = np.int32(len(scores) - index)
        to_end = max(to_end, distance if scores[index] == score else np.int32(0))
    return len(scores) - to_end


@compiled(void, FLOAT32S, FLOAT32S, int64, int64)
def add_bias(scores, bias, start, size):
    """Add a row's bias."""
    for index in range(size):
        scores[index] += bias[start + index]


@compiled(float64, FLOAT32S, FLOAT64S, FLOAT64S, float64, float64)
def fill_weights(scores, weights, sums, peak, inverse_temperature):
    """Compute exp((score - peak) / temperature), and return the sum.

    The exponential is 2**k times the Taylor series of a remainder below ln(2) / 2, whose first term left out is below
    the last bit; it is off by less than 3e-16.
    """
    total = 0.0
    for block in range(len(sums)):
        block_sum = 0.0
        for offset in range(BLOCK):
            index = block * BLOCK + offset
            scaled = (np.float64(scores[index]) - peak) * inverse_temperature
            power = max(scaled, _LOWEST)
            rounded = multiply_add(power, _LOG2_E, _ROUNDER)
            whole = rounded - _ROUNDER
            rest = multiply_add(-whole, _LN2_LOW, multiply_add(-whole, _LN2_HIGH, power))
            value = 1.0 / 6227020800.0
            value = multiply_add(value, rest, 1.0 / 479001600.0)
            value = multiply_add(value, rest, 1.0 / 39916800.0)
            value = multiply_add(value, rest, 1.0 / 3628800.0)
            value = multiply_add(value, rest, 1.0 / 362880.0)
            value = multiply_add(value, rest, 1.0 / 40320.0)
            value = multiply_add(value, rest, 1.0 / 5040.0)
            value = multiply_add(value, rest, 1.0 / 720.0)
            value = multiply_add(value, rest, 1.0 / 120.0)
            value = multiply_add(value, rest, 1.0 / 24.0)
            value = multiply_add(value, rest, 1.0 / 6.0)
            value = multiply_add(value, rest, 0.5)
            value = multiply_add(value, rest, 1.0)
            value = multiply_add(value, rest, 1.0)
            weight = value * from_bits((bits(rounded) + 1023) << 52)
            weight = weight if scaled >= _LOWEST else 0.0
            weights[index] = weight
            block_sum = sum_any_order(block_sum, weight)
        sums[block] = block_sum
        total += block_sum
    return total


@compiled(float64, FLOAT32S, FLOAT64S, FLOAT64S, float32, float64, float64, float64)
def keep_likely(scores, weights, sums, cut, peak, inverse_temperature, log_min_p):
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


@compiled(void, FLOAT32S, FLOAT64S, float32, int64)
def drop_ties(scores, weights, cut, kept):
    """Zero the weights of ids with the score `cut` but for the lowest `kept` ids."""
    for index in range(len(scores)):
        if scores[index] == cut:
            kept -= 1
            if kept < 0:
                weights[index] = 0.0


@compiled(int64, FLOAT64S, FLOAT64S, float64)
def pick(weights, sums, target):
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


@compiled(void, FLOAT32S, INT32S, float32, float64, int64)
def fill_buckets(scores, buckets, peak, scale, num_buckets):
    """Sort scores into classes by their distance to the peak, times `scale`; -inf into one of its own."""
    for index in range(len(scores)):
        score = scores[index]
        distance = min((np.float64(peak) - np.float64(score)) * scale, num_buckets - 1.0)
        buckets[index] = np.int32(distance) if score > -float("inf") else num_buckets
