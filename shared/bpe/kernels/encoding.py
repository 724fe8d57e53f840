"""Pretokens to ids: most are in the cache; only the others are merged."""

from typing import NamedTuple

import numpy as np

from shared.bpe.kernels.atomics import observe
from shared.bpe.kernels.pretoken_cache import (
    AHEAD,
    ENTRY,
    KEPT_BYTES,
    NO_KEY,
    Cache,
    copy_short_ids,
    has_short,
    home_of,
    keep,
    look_up,
)
from shared.bpe.kernels.pretoken_keys import Key, key_of
from shared.bpe.kernels.pretoken_merging import NO_MEMORY, SHORT, merge_long, merge_short
from shared.bpe.kernels.scanner import Scanner, scan
from shared.bpe.kernels.tables import Tables, split_parts, whole_token
from shared.kernels.compiling import calling_python, compiled, inlined
from shared.kernels.intrinsics import BLOCK, copy_bytes, find_utf8, load_word, new_array, none, prefetch, store_word
from shared.kernels.numpy_api import NumPyApi
from shared.kernels.types import Bytes, Int64Array, Uint8Array, Uint32Array, int64, python_object

# Entries that an output array needs beyond one for each byte, since ids are written several at a time.
SLACK = 16


@inlined
def _merge_pretoken(
    tables: Tables, cache: Cache, text: Bytes, start: int64, length: int64, out: Uint32Array, filled: int64
) -> int64:
    """Write the ids of a pretoken that is in no cache to `out[filled:]`; returns where they end."""
    whole = whole_token(tables, text, start, start + length)
    if whole >= 0:
        out[filled] = whole
        return filled + 1
    if length <= SHORT:
        done = merge_short(tables, text, start, length, cache.ids, cache.candidates, out, filled)
    else:
        done = merge_long(tables, text, start, length, out, filled)
    if done != NO_MEMORY and tables.parts.size > 0:
        done = split_parts(tables, out, filled, done)
    return done


@compiled
def _encode_rare(
    tables: Tables, cache: Cache, text: Bytes, start: int64, length: int64, key: Key, out: Uint32Array, filled: int64
) -> int64:
    """Write the ids of a pretoken that is not a short one in the line of its home to `out[filled:]`.

    Returns:
        Where they end, or NO_MEMORY.
    """
    done, unused = look_up(cache.table, text, start, length, key, out, filled)
    if done > filled:
        return done
    done = look_up(cache.older, text, start, length, key, out, filled).filled
    if done == filled:
        done = _merge_pretoken(tables, cache, text, start, length, out, filled)
    if done != NO_MEMORY and length <= KEPT_BYTES and unused >= 0:
        keep(cache.table, text, start, length, key, unused, out[filled:done])
    return done


@compiled
def _prepare(cache: Cache, text: Bytes, start: int64, ends: Int64Array, first: int64, last: int64) -> int64:
    """Put keys and homes of the pretokens `first` to `last` into `cache.keys`, and prefetch the entries there.

    Returns:
        Where the last of them ends.
    """
    keys, entries = cache.keys, cache.table.entries
    slot = 0
    for pretoken in range(first, last):
        end = np.int64(load_word(ends, pretoken))
        key = key_of(text, start, end - start, NO_KEY)
        home = home_of(entries, key)
        prefetch(entries, np.int64(home))
        store_word(keys, slot, key.low)
        store_word(keys, slot + 1, key.high)
        store_word(keys, slot + 2, home)
        slot += 3
        start = end
    return start


@compiled
def encode_pretokens(
    tables: Tables,
    cache: Cache,
    text: Bytes,
    start: int64,
    ends: Int64Array,
    num_pretokens: int64,
    out: Uint32Array,
    filled: int64,
) -> int64:
    """Write the ids of pretokens that follow one another to `out[filled:]`; returns where they end, or NO_MEMORY.

    Args:
        tables: The vocabulary.
        cache: The caller's own.
        text: UTF-8.
        start: Where the first pretoken begins.
        ends: Where each pretoken ends.
        num_pretokens: How many of them.
        out: At least one entry for each byte of the pretokens, and SLACK more.
        filled: Entries of `out` that are taken already.
    """
    keys, entries = cache.keys, cache.table.entries
    ahead = start
    for first in range(0, num_pretokens, AHEAD):
        last = min(first + AHEAD, num_pretokens)
        ahead = _prepare(cache, text, ahead, ends, first, last)
        slot = 0
        for pretoken in range(first, last):
            end = np.int64(load_word(ends, pretoken))
            key, home = Key(load_word(keys, slot), load_word(keys, slot + 1)), np.int64(load_word(keys, slot + 2))
            slot += 3
            entry, second = home, observe(entries, home + 1)
            is_found = has_short(entries, entry, second, key)
            if not is_found:
                entry ^= ENTRY  # the other of the same line
                second = observe(entries, entry + 1)
                is_found = has_short(entries, entry, second, key)
            if is_found:
                filled = copy_short_ids(entries, entry, second, out, filled)
            else:
                filled = _encode_rare(tables, cache, text, start, end - start, key, out, filled)
                if filled == NO_MEMORY:
                    return filled
            start = end
    return filled


class Encoded(NamedTuple):
    """How far a text was encoded, and where its ids end, or NO_MEMORY."""

    reached: int64
    filled: int64


@compiled
def encode_text(
    tables: Tables,
    cache: Cache,
    scanner: Scanner,
    data: Bytes,
    start: int64,
    end: int64,
    out: Uint32Array,
    filled: int64,
) -> Encoded:
    """Write the ids of a text to `out[filled:]`.

    It ends early once the cache is full: go on with another.

    Args:
        tables: The vocabulary.
        cache: The caller's own.
        scanner: The pattern, and room for cuts.
        data: Holds the text, UTF-8.
        start: Where it begins.
        end: Where it ends.
        out: At least one entry for each byte, and SLACK more.
        filled: Entries of `out` that are taken already.
    """
    while start < end and cache.table.counters[0] < cache.table.counters[1]:
        num_pretokens = scan(scanner, data, start, end)
        filled = encode_pretokens(tables, cache, data, start, scanner.cuts, num_pretokens, out, filled)
        if filled == NO_MEMORY:
            break
        start = scanner.cuts[num_pretokens - 1]
    return Encoded(start, filled)


@calling_python
def encode_string(
    string: int64,
    numpy_api: NumPyApi,
    tables: Tables,
    cache: Cache,
    scanner: Scanner,
    text: Uint8Array,
    out: Uint32Array,
) -> python_object:
    """The ids of a short Python string, as a NumPy array.

    Args:
        string: The address of the object.
        numpy_api: `numpy_api()`.
        tables: As in `encode_text`.
        cache: As in `encode_text`.
        scanner: As in `encode_text`.
        text: Room for its UTF-8, and BLOCK more.
        out: Room for its ids: one for each byte, and SLACK more.

    Returns:
        None if another cache is needed first, or more memory; 0 if the string has no UTF-8.
    """
    address = find_utf8(string, scanner.cuts, 0)
    if address == 0:
        return 0
    end = scanner.cuts[0]
    is_full = end > 0 and cache.table.counters[0] >= cache.table.counters[1]
    if is_full or end + BLOCK > text.size or end + SLACK > out.size:
        return none()
    copy_bytes(address, text, 0, end)
    start = filled = 0
    while start < end:
        num_pretokens = scan(scanner, text, start, end)
        filled = encode_pretokens(tables, cache, text, start, scanner.cuts, num_pretokens, out, filled)
        if filled == NO_MEMORY:
            return none()
        start = scanner.cuts[num_pretokens - 1]
    return new_array(numpy_api, out, filled)


class Texts(NamedTuple):
    """Texts in UTF-8.

    Attributes:
        data: Holds them.
        starts: Where each begins.
        ends: Where each ends.
        terminator: An id to put after each text except the last, or -1.
    """

    data: Bytes
    starts: Int64Array
    ends: Int64Array
    terminator: int64


@compiled
def encode_texts(
    tables: Tables,
    cache: Cache,
    scanner: Scanner,
    texts: Texts,
    out: Uint32Array,
    id_ends: Int64Array,
    state: Int64Array,
) -> None:
    """`encode_text` for texts one after the other.

    Args:
        tables: As in `encode_text`.
        cache: As in `encode_text`.
        scanner: As in `encode_text`.
        texts: The texts.
        out: At least one entry for each byte and terminator, and SLACK more.
        id_ends: Where the ids of each text end.
        state: How far it came: the text, the byte of it, and the place in `out` or NO_MEMORY. Zeros at first; as long
            as texts are left, go on with another cache and everything else as it is.
    """
    text, done, filled = state[0], state[1], state[2]
    while text < texts.ends.size:
        start, end = texts.starts[text] + done, texts.ends[text]
        reached, filled = encode_text(tables, cache, scanner, texts.data, start, end, out, filled)
        done = reached - texts.starts[text]
        if reached < end:
            break
        done = 0
        if texts.terminator >= 0 and text + 1 < texts.ends.size:
            out[filled] = texts.terminator
            filled += 1
        id_ends[text] = filled
        text += 1
    state[0], state[1], state[2] = text, done, filled
