"""Randomness without a state: a number's place in a pseudorandom order, or a draw, is computed from its index alone."""

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint64]

ROUNDS = 8
"""Rounds of a permutation, each with a key. Four are enough in theory for large domains; small ones gain from more."""


def permute(numbers: Numbers, count: int, keys: Numbers) -> Numbers:
    """Map numbers below `count` one to one to numbers below `count`.

    A balanced Feistel network over the next power of four, applied again while its result is not below `count`: the
    cycle-walking cipher of Black and Rogaway (2002, "Ciphers with arbitrary finite domains", section 3). It takes fewer
    than four applications on average.

    Args:
        numbers: uint64 [...], each below `count`.
        count: Size of the domain, at least 1.
        keys: uint64 [ROUNDS], any.
    """
    half_bits = max(1, ((count - 1).bit_length() + 1) // 2)
    result = _feistel(numbers, half_bits, keys)
    while (outside := result >= count).any():
        result[outside] = _feistel(result[outside], half_bits, keys)
    return result


def random_numbers(first: int, count: int, seed: int) -> Numbers:
    """The random numbers `first` to `first + count - 1` of a stream: SplitMix64, whose state only counts.

    Args:
        first: Index of the first number, 0 or more.
        count: How many.
        seed: Of the stream, a number of 64 bits.

    Returns:
        uint64 [count], each of 64 random bits.
    """
    indexes = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    return _mix(np.uint64(seed) + indexes * np.uint64(0x9E3779B97F4A7C15))


def _feistel(numbers: Numbers, half_bits: int, keys: Numbers) -> Numbers:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = numbers >> shift, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(x: Numbers) -> Numbers:
    """SplitMix64's finalizer (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators")."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
