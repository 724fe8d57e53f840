"""A cache of pretokens with their ids.

Most pretokens were seen before: a cache answers for them, and merging is left for the rest. Its size is fixed,
so memory stays bounded and no text can make it slow; and it has one owner at a time, so each thread has its own.

    entries   four words for each pretoken, two entries to a line of 64 bytes. Pretokens of up to 15 bytes and 4 ids:
              | bytes 0-7 | bytes 8-14, then a byte: length in its low and number of ids in its high half | ids 0-3 |
              others, which have more in the store:
              | first word of the key | STORED | their place in the store | second word of the key |
    store     a ring of records, one for each pretoken that was kept there, the oldest overwritten by the newest:
              | length in the low and number of ids in the high half | bytes of pretokens longer than 15 | ids |

Keys are those of `pretoken_keys`, with the mark NO_KEY. The second word of an unused entry is zero.

A hash of the key gives the entry's home. A new pretoken whose home is taken goes elsewhere in the group of eight
entries around it, and is swapped with the entry at its home when it is found again: so frequent pretokens are at home,
where one comparison finds them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.bpe.kernels.pretoken_keys import SHORT_BYTES, SPREAD_HIGH, SPREAD_LOW, Key, bytes_as_word
from shared.bpe.kernels.pretoken_merging import SCRATCH
from shared.kernels.compiling import compiled, inlined
from shared.kernels.intrinsics import leading_zeros, load_word, store_word
from shared.kernels.types import Bytes, Int64Array, Uint32Array, Uint64Array, boolean, int64, uint64

SHORT_IDS = 4
ENTRY, GROUP = 4, 32  # words
# The longest pretoken that is kept, and the words that it takes at most.
KEPT_BYTES, KEPT_WORDS = 128, 1 + 128 // 8 + 128 // 2

# Entries that are prefetched before the first of them is read.
AHEAD = 64

# What the second word of an entry or a key is instead of bytes and a length, which is never 0.
STORED, NO_KEY = np.uint64(2), np.uint64(1)
COUNT_SHIFT = np.uint64(60)

_LINE = 64

_IGNORE_COUNT = np.uint64(4)
_WITHOUT_COUNT = np.uint64((1 << 60) - 1)
_HIGH = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


class Cache(NamedTuple):
    """See the module; what follows the counters is scratch."""

    entries: Uint64Array
    store: Uint64Array
    counters: Int64Array  # pretokens that were merged; after how many to grow; words ever put into the store
    keys: Uint64Array
    ids: Uint32Array
    candidates: Uint32Array


def new_cache(num_entries: int, store_words: int) -> Cache:
    """An empty cache; both sizes are powers of two, of 8 entries and KEPT_WORDS words at least."""
    return Cache(
        entries=_aligned_zeros(num_entries * ENTRY),
        store=np.zeros(store_words, np.uint64),
        counters=np.array([0, num_entries // 2, 0], np.int64),
        keys=np.empty(3 * AHEAD, np.uint64),
        ids=np.empty(SCRATCH, np.uint32),
        candidates=np.empty(SCRATCH, np.uint32),
    )


def _aligned_zeros(words: int) -> NDArray[np.uint64]:
    """Words that begin at a cache line; NumPy's begin 16 bytes behind one, and every second entry would lie in two."""
    memory = np.zeros(words + _LINE // 8, np.uint64)
    first = -memory.ctypes.data % _LINE // 8
    return memory[first : first + words]


@inlined
def home_of(entries: Uint64Array, key: Key) -> uint64:
    """Where the entry of a key belongs."""
    hashed = key.low * SPREAD_LOW + key.high * SPREAD_HIGH
    return (hashed >> np.uint64(leading_zeros(np.uint64(entries.size // ENTRY - 1)))) * np.uint64(ENTRY)


@inlined
def is_short_entry(entries: Uint64Array, entry: int64, key: Key) -> boolean:
    """Whether an entry has this key and the ids with it, whatever their number."""
    others = (load_word(entries, entry + 1) ^ key.high) << _IGNORE_COUNT
    return ((load_word(entries, entry) ^ key.low) | others) == 0


@inlined
def copy_short_ids(entries: Uint64Array, entry: int64, out: Uint32Array, filled: int64) -> int64:
    """Write the ids in an entry to `out[filled:]`; returns where they end."""
    store_word(out, filled, load_word(entries, entry + 2))
    store_word(out, filled + 2, load_word(entries, entry + 3))
    return filled + np.int64(load_word(entries, entry + 1) >> COUNT_SHIFT)


@inlined
def copy_stored_ids(
    cache: Cache, position: int64, text: Bytes, start: int64, length: int64, out: Uint32Array, filled: int64
) -> int64:
    """Write the ids in the store to `out[filled:]`; returns where they end, `filled` if they are not there any more.

    Pretokens of equal hash are distinguished by their bytes.
    """
    store = cache.store
    if cache.counters[2] > position + store.size:
        return filled
    place = position & (store.size - 1)
    header = load_word(store, place)
    if header & _LOW != np.uint64(length):
        return filled
    place += 1
    if length > SHORT_BYTES:
        for first in range(0, length, 8):
            if load_word(store, place) != bytes_as_word(text, start + first, min(8, length - first)):
                return filled
            place += 1
    count = np.int64(header >> _HIGH)
    for index in range(0, count, 2):
        store_word(out, filled + index, load_word(store, place))
        place += 1
    return filled + count


@inlined
def _free_position(cache: Cache) -> int64:
    """Where the next record goes: none is in two parts."""
    size = cache.store.size
    position = cache.counters[2]
    return position if (position & (size - 1)) + KEPT_WORDS <= size else (position + size) & -size


@inlined
def put_into_store(cache: Cache, text: Bytes, start: int64, length: int64, ids: Uint32Array) -> int64:
    """Store a pretoken of at most KEPT_BYTES bytes and its ids; returns the position."""
    store = cache.store
    position = _free_position(cache)
    place = position & (store.size - 1)
    first = place
    store[place] = np.uint64(length) | (np.uint64(ids.size) << _HIGH)
    place += 1
    if length > SHORT_BYTES:
        for offset in range(0, length, 8):
            store[place] = bytes_as_word(text, start + offset, min(8, length - offset))
            place += 1
    for index in range(0, ids.size, 2):
        store[place] = load_word(ids, index)
        place += 1
    cache.counters[2] = position + place - first
    return position


@inlined
def swap(entries: Uint64Array, first: int64, second: int64) -> None:
    """Let two entries change places."""
    for word in range(ENTRY):
        entries[first + word], entries[second + word] = entries[second + word], entries[first + word]


@compiled
def move_pretokens(old: Cache, new: Cache) -> None:
    """Copy the pretokens of a cache into a larger one."""
    for source in range(0, old.entries.size, ENTRY):
        low, second, last = old.entries[source], old.entries[source + 1], old.entries[source + 3]
        if second == 0:
            continue
        key = Key(low, last if second == STORED else second & _WITHOUT_COUNT)
        home = np.int64(home_of(new.entries, key))
        target = home
        for step in range(0, GROUP, ENTRY):
            target = home ^ step
            if new.entries[target + 1] == 0:
                break
        position = np.int64(old.entries[source + 2])
        if second == STORED:
            if old.counters[2] > position + old.store.size:
                continue
            position = _move_record(old, position, new)
        new.entries[target], new.entries[target + 1], new.entries[target + 3] = low, second, last
        new.entries[target + 2] = np.uint64(position)


@inlined
def _move_record(old: Cache, position: int64, new: Cache) -> int64:
    """Copy a record from one store to another; returns its position there."""
    source = position & (old.store.size - 1)
    length, count = np.int64(old.store[source] & _LOW), np.int64(old.store[source] >> _HIGH)
    words = 1 + ((count + 1) >> 1) + ((length + 7 >> 3) if length > SHORT_BYTES else 0)
    position = _free_position(new)
    target = position & (new.store.size - 1)
    for word in range(words):
        new.store[target + word] = old.store[source + word]
    new.counters[2] = position + words
    return position
