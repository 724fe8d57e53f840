"""A cache of pretokens with their ids, which threads share.

Most pretokens were seen before: a cache answers for them, and merging is left for the rest. Each is put in once and
stays as it is, so threads read without waiting for each other. Its size is fixed, so memory stays bounded and no text
can make it slow: once it is full another follows it, which takes over what is still used.

    entries   four words for each pretoken, two entries to a line of 64 bytes. Pretokens of up to 15 bytes and 4 ids:
              | bytes 0-7 | bytes 8-14, then a byte: length in its low and number of ids in its high half | ids 0-3 |
              others, which have more in the store:
              | first word of the key | STORED | their place in the store | second word of the key |
    store     records, one for each pretoken that was kept there:
              | length in the low and number of ids in the high half | bytes of pretokens longer than 15 | ids |

Keys are those of `pretoken_keys`, with the mark NO_KEY. The second word of an entry is zero as long as it is unused,
TAKEN while a thread writes the others, and written last.

A hash of the key gives the entry's home. A new pretoken whose home is taken goes elsewhere in the group of eight
entries around it. Frequent pretokens come early, so most of them are at home, where one comparison finds them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.bpe.kernels.atomics import add, claim, observe, publish
from shared.bpe.kernels.pretoken_keys import SHORT_BYTES, SPREAD_HIGH, SPREAD_LOW, Key, bytes_as_word
from shared.bpe.kernels.pretoken_merging import SCRATCH
from shared.kernels.compiling import compiled, inlined
from shared.kernels.intrinsics import leading_zeros, load_word, store_word
from shared.kernels.types import Bytes, Int64Array, Uint32Array, Uint64Array, boolean, int64, uint64

SHORT_IDS = 4
ENTRY, GROUP = 4, 32  # words
KEPT_BYTES = 128  # the longest pretoken that is kept

# Entries that are prefetched before the first of them is read.
AHEAD = 128

# What the second word of an entry or a key is instead of bytes and a length, which is never 0.
STORED, NO_KEY, TAKEN = np.uint64(2), np.uint64(1), np.uint64(3)
COUNT_SHIFT = np.uint64(60)

_LINE = 64

_IGNORE_COUNT = np.uint64(4)
_HIGH = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_WITHOUT_COUNT = np.uint64((1 << 60) - 1)


class Table(NamedTuple):
    """What threads share, see the module."""

    entries: Uint64Array
    store: Uint64Array
    counters: Int64Array  # entries; after how many it is full; words of the store that are taken


class Cache(NamedTuple):
    """What one thread uses: the table, the one before, from which it takes over pretokens, and scratch."""

    table: Table
    older: Table
    keys: Uint64Array
    ids: Uint32Array
    candidates: Uint32Array


def new_table(num_entries: int, store_words: int) -> Table:
    """An empty table; its entries are a power of two, 8 at least."""
    return Table(
        entries=_aligned_zeros(num_entries * ENTRY),
        store=np.zeros(store_words, np.uint64),
        counters=np.array([0, num_entries // 2, 0], np.int64),
    )


def is_full(table: Table) -> bool:
    """Whether another should follow it."""
    return bool(table.counters[0] >= table.counters[1])


def new_cache(table: Table, older: Table) -> Cache:
    """A thread's own."""
    return Cache(
        table, older,
        keys=np.empty(3 * AHEAD, np.uint64),
        ids=np.empty(SCRATCH, np.uint32),
        candidates=np.empty(SCRATCH, np.uint32),
    )  # fmt: skip


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
def has_short(entries: Uint64Array, entry: int64, second: uint64, key: Key) -> boolean:
    """Whether an entry, whose second word was observed, has this key and the ids with it, whatever their number."""
    return ((load_word(entries, entry) ^ key.low) | ((second ^ key.high) << _IGNORE_COUNT)) == 0


@inlined
def copy_short_ids(entries: Uint64Array, entry: int64, second: uint64, out: Uint32Array, filled: int64) -> int64:
    """Write the ids in an entry to `out[filled:]`; returns where they end."""
    store_word(out, filled, load_word(entries, entry + 2))
    store_word(out, filled + 2, load_word(entries, entry + 3))
    return filled + np.int64(second >> COUNT_SHIFT)


@inlined
def _copy_stored_ids(
    store: Uint64Array, place: int64, text: Bytes, start: int64, length: int64, out: Uint32Array, filled: int64
) -> int64:
    """Write the ids of a record to `out[filled:]`; returns where they end, `filled` if it is another pretoken's.

    Pretokens of equal hash are distinguished by their bytes.
    """
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


class Found(NamedTuple):
    """Where the ids of a pretoken end, if it is there, else where they would begin; and an unused entry, or -1."""

    filled: int64
    unused: int64


@inlined
def look_up(table: Table, text: Bytes, start: int64, length: int64, key: Key, out: Uint32Array, filled: int64) -> Found:
    """Write the ids of a pretoken to `out[filled:]` if it is anywhere in the group of its home."""
    entries = table.entries
    home = np.int64(home_of(entries, key))
    for step in range(0, GROUP, ENTRY):
        entry = home ^ step
        second = observe(entries, entry + 1)
        if second == 0:
            return Found(filled, entry)
        if second == STORED:
            if load_word(entries, entry) == key.low and load_word(entries, entry + 3) == key.high:
                place = np.int64(load_word(entries, entry + 2))
                done = _copy_stored_ids(table.store, place, text, start, length, out, filled)
                if done > filled:
                    return Found(done, -1)
        elif has_short(entries, entry, second, key):
            return Found(copy_short_ids(entries, entry, second, out, filled), -1)
    return Found(filled, -1)


@inlined
def _record_words(length: int64, count: int64) -> int64:
    """The words of a record of so many bytes and ids."""
    return 1 + ((count + 1) >> 1) + ((length + 7 >> 3) if length > SHORT_BYTES else 0)


@inlined
def _put_into_store(table: Table, text: Bytes, start: int64, length: int64, ids: Uint32Array) -> int64:
    """Store a pretoken of at most KEPT_BYTES bytes and its ids; returns the place, -1 if there is none left."""
    store = table.store
    words = _record_words(length, ids.size)
    first = add(table.counters, 2, words)
    if first + words > store.size:
        publish(table.counters, 0, np.uint64(table.counters[1]))  # it is full
        return -1
    place = first
    store[place] = np.uint64(length) | (np.uint64(ids.size) << _HIGH)
    place += 1
    if length > SHORT_BYTES:
        for offset in range(0, length, 8):
            store[place] = bytes_as_word(text, start + offset, min(8, length - offset))
            place += 1
    for index in range(0, ids.size, 2):
        store[place] = load_word(ids, index)
        place += 1
    return first


@inlined
def keep(table: Table, text: Bytes, start: int64, length: int64, key: Key, entry: int64, ids: Uint32Array) -> None:
    """Make an unused entry that of a pretoken, unless another thread is faster."""
    entries = table.entries
    if length <= SHORT_BYTES and ids.size <= SHORT_IDS:
        if claim(entries, entry + 1, TAKEN):
            entries[entry] = key.low
            entries[entry + 2] = load_word(ids, 0)
            entries[entry + 3] = load_word(ids, 2)
            publish(entries, entry + 1, key.high | (np.uint64(ids.size) << COUNT_SHIFT))
            add(table.counters, 0, 1)
    else:
        place = _put_into_store(table, text, start, length, ids)
        if place >= 0 and claim(entries, entry + 1, TAKEN):
            entries[entry] = key.low
            entries[entry + 2] = np.uint64(place)
            entries[entry + 3] = key.high
            publish(entries, entry + 1, STORED)
            add(table.counters, 0, 1)


@compiled
def move_pretokens(old: Table, new: Table) -> None:
    """Copy the pretokens of a table into a larger one that no thread uses yet, those at home before the others."""
    for is_home in (True, False):
        for source in range(0, old.entries.size, ENTRY):
            low, second, last = old.entries[source], observe(old.entries, source + 1), old.entries[source + 3]
            if second == 0 or second == TAKEN:
                continue
            key = Key(low, last if second == STORED else second & _WITHOUT_COUNT)
            if (np.int64(home_of(old.entries, key)) == source) != is_home:
                continue
            home = np.int64(home_of(new.entries, key))
            for step in range(0, GROUP, ENTRY):
                target = home ^ step
                if new.entries[target + 1] == 0:
                    third = old.entries[source + 2]
                    if second == STORED:
                        third = _copy_record(old, np.int64(third), new)
                    new.entries[target], new.entries[target + 1] = low, second
                    new.entries[target + 2], new.entries[target + 3] = third, last
                    new.counters[0] += 1
                    break


@inlined
def _copy_record(old: Table, source: int64, new: Table) -> uint64:
    """Copy a record from one store to another; returns its place there."""
    length, count = np.int64(old.store[source] & _LOW), np.int64(old.store[source] >> _HIGH)
    target = new.counters[2]
    words = _record_words(length, count)
    for word in range(words):
        new.store[target + word] = old.store[source + word]
    new.counters[2] = target + words
    return np.uint64(target)
