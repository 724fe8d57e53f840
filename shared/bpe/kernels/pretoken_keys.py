"""Keys that pretokens are looked up by, two words each.

Up to SHORT_BYTES bytes, the key is the pretoken itself: its bytes, then zeros, and its length in the top byte. Of a
longer one it is a hash and a mark, which the table of the keys chooses.
"""

from typing import NamedTuple

import numpy as np

from shared.kernels.compiling import compiled, inlined
from shared.kernels.intrinsics import load_word
from shared.kernels.types import Bytes, int64, uint64

SHORT_BYTES = 15
LENGTH_SHIFT = np.uint64(56)

# Multipliers that spread what is hashed over the high bits.
SPREAD_LOW, SPREAD_HIGH = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)

# Which bytes of two words belong to a pretoken, by its length.
_MASKS = np.array([word for n in range(16) for word in divmod((1 << 8 * n) - 1, 1 << 64)[::-1]], np.uint64)


class Key(NamedTuple):
    """See the module."""

    low: uint64
    high: uint64


@inlined
def bytes_as_word(data: Bytes, begin: int64, count: int64) -> uint64:
    """The 1 to 8 bytes from begin on, then zeros, as a little-endian word; looks at none past the data."""
    if begin + 8 <= data.size:
        return load_word(data, begin) & (~np.uint64(0) >> np.uint64(64 - 8 * count))
    word = np.uint64(0)
    for offset in range(count):
        word |= np.uint64(data[begin + offset]) << np.uint64(8 * offset)
    return word


@inlined
def hash_words(low: uint64, high: uint64) -> uint64:
    """A hash whose top bits depend on all bits of both words."""
    mixed = (low ^ (low >> 32)) * SPREAD_LOW + high * SPREAD_HIGH
    return (mixed ^ (mixed >> 29)) * SPREAD_LOW


@compiled
def hash_bytes(data: Bytes, begin: int64, length: int64) -> uint64:
    """A hash of a longer pretoken."""
    hashed = np.uint64(length)
    for offset in range(0, length, 8):
        hashed = hash_words(hashed, bytes_as_word(data, begin + offset, min(8, length - offset)))
    return hashed


@compiled
def _other_key(data: Bytes, begin: int64, length: int64, mark: uint64) -> Key:
    """The key of a pretoken that is long, or near the end of the data."""
    if length > SHORT_BYTES:
        return Key(hash_bytes(data, begin, length), mark)
    low = bytes_as_word(data, begin, min(8, length))
    high = bytes_as_word(data, begin + 8, length - 8) if length > 8 else np.uint64(0)
    return Key(low, high | (np.uint64(length) << LENGTH_SHIFT))


@inlined
def key_of(data: Bytes, begin: int64, length: int64, mark: uint64) -> Key:
    """The key of a pretoken; a long one has `mark`."""
    if (SHORT_BYTES - length) | (data.size - 16 - begin) < 0:  # too long, or near the end: one branch for both
        return _other_key(data, begin, length, mark)
    # Without a branch on the length, which is unpredictable.
    low = load_word(data, begin) & load_word(_MASKS, 2 * length)
    high = load_word(data, begin + 8) & load_word(_MASKS, 2 * length + 1)
    return Key(low, high | (np.uint64(length) << LENGTH_SHIFT))
