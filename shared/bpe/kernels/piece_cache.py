"""The memory of pieces that were seen before, with their ids.

Most pieces of a text were seen before: a cache answers for them, and merging is left for the rest. It has a fixed size,
so memory stays bounded and no text can make it slow; and one owner at a time, so each thread has its own.

    narrow   pieces of up to 15 bytes that gave up to 4 ids. A bucket of four entries is two lines of 64 bytes:
             | bytes 0-7 | bytes 8-14, then a byte: length in its low and number of ids in its high half | ids 0-3 |
    wide     pieces of up to 104 bytes. A bucket of four entries is eight lines, of which most entries fill one each:
             | length in the low and number of ids in the high half | bytes | ids |

Bytes past the end of a piece are zero, and an unused entry has the length 0, which no piece has. A new piece takes the
last place of its bucket, and a piece that is found behind the first line changes places with the one before it (the
transpose rule, Rivest 1976, https://doi.org/10.1145/360051.360050), so that what is seen often stays, and in front.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shared.bpe.kernels import types
from shared.bpe.kernels.compiling import compiled
from shared.bpe.kernels.intrinsics import load_word
from shared.bpe.kernels.piece_merging import SHORT
from shared.bpe.kernels.types import BYTES, INT64S, UINT32S, UINT64S, int64, uint64

NARROW_BYTES, NARROW_IDS, NARROW_WORDS, NARROW_WAYS = 15, 4, 4, 4
WIDE_BYTES, WIDE_WORDS, WIDE_WAYS = 104, 16, 4
NARROW_BUCKET, WIDE_BUCKET = NARROW_WORDS * NARROW_WAYS, WIDE_WORDS * WIDE_WAYS

# A bucket is asked for this many pieces before it is looked at; their keys wait in a ring.
AHEAD, RING = 24, 32

HIGH = np.uint64(32)
LENGTH_SHIFT = np.uint64(56)
COUNT_SHIFT = np.uint64(60)
_IGNORE_COUNT = np.uint64(4)
_SPREAD_LOW = np.uint64(0x9E3779B97F4A7C15)
_SPREAD_HIGH = np.uint64(0xC2B2AE3D27D4EB4F)


class Cache(NamedTuple):
    """See the module; what follows the counters is scratch."""

    narrow: npt.NDArray[np.uint64]
    wide: npt.NDArray[np.uint64]
    counters: npt.NDArray[np.int64]  # pieces that were merged, and after how many the cache should grow
    keys: npt.NDArray[np.uint64]
    ids: npt.NDArray[np.uint32]
    candidates: npt.NDArray[np.uint32]


CACHE = types.NamedTuple((UINT64S, UINT64S, INT64S, UINT64S, UINT32S, UINT32S), Cache)


def new_cache(narrow_buckets: int, wide_buckets: int) -> Cache:
    """An empty cache; both sizes are powers of two, a bucket is 128 and 512 bytes."""
    return Cache(
        narrow=np.zeros(narrow_buckets * NARROW_BUCKET, np.uint64),
        wide=np.zeros(wide_buckets * WIDE_BUCKET, np.uint64),
        counters=np.array([0, narrow_buckets], np.int64),
        keys=np.empty(3 * RING, np.uint64),
        ids=np.empty(SHORT, np.uint32),
        candidates=np.empty(SHORT, np.uint32),
    )


@compiled(uint64, BYTES, int64, int64, inline=True)
def bytes_as_word(text: npt.NDArray[np.uint8], start: int, count: int) -> np.uint64:
    """The 1 to 8 bytes from start on, then zeros, as a little-endian word; looks at none past the text."""
    if start + 8 <= text.size:
        return load_word(text, start) & (~np.uint64(0) >> np.uint64(64 - 8 * count))
    word = np.uint64(0)
    for place in range(count):
        word |= np.uint64(text[start + place]) << np.uint64(8 * place)
    return word


@compiled(uint64, uint64, uint64, inline=True)
def hash_key(low: np.uint64, high: np.uint64) -> np.uint64:
    """A hash of the key of a piece in the narrow cache, good in its low bits."""
    mixed = (low ^ (low >> HIGH)) * _SPREAD_LOW + (high ^ (high >> HIGH)) * _SPREAD_HIGH
    return mixed ^ (mixed >> HIGH)


@compiled(uint64, BYTES, int64, int64, inline=True)
def hash_piece(text: npt.NDArray[np.uint8], start: int, length: int) -> np.uint64:
    """A hash of a piece for the wide cache, good in its low bits."""
    hashed = np.uint64(length)
    for place in range(0, length, 8):
        hashed = (hashed ^ bytes_as_word(text, start + place, min(8, length - place))) * _SPREAD_LOW
        hashed ^= hashed >> HIGH
    return hashed


@compiled(types.boolean, UINT64S, int64, uint64, uint64, inline=True)
def is_narrow_entry(narrow: npt.NDArray[np.uint64], entry: int, low: np.uint64, high: np.uint64) -> bool:
    """Whether an entry of the narrow cache has this key, whatever the number of its ids."""
    return ((load_word(narrow, entry) ^ low) | ((load_word(narrow, entry + 1) ^ high) << _IGNORE_COUNT)) == 0


@compiled(types.boolean, UINT64S, int64, BYTES, int64, int64, inline=True)
def is_wide_entry(
    wide: npt.NDArray[np.uint64], entry: int, text: npt.NDArray[np.uint8], start: int, length: int
) -> bool:
    """Whether an entry of the wide cache is about this piece."""
    if wide[entry] & np.uint64(0xFFFFFFFF) != np.uint64(length):
        return False
    for place in range(0, length, 8):
        if wide[entry + 1 + (place >> 3)] != bytes_as_word(text, start + place, min(8, length - place)):
            return False
    return True


@compiled(types.void, UINT64S, int64, int64, int64, inline=True)
def swap(words: npt.NDArray[np.uint64], first: int, second: int, count: int) -> None:
    """Let two entries of so many words change places."""
    for word in range(count):
        words[first + word], words[second + word] = words[second + word], words[first + word]
