"""Pretokens to ids: most are in the cache; only the others are merged."""

import numpy as np
import numpy.typing as npt

from shared.bpe.kernels.pretoken_cache import (
    AHEAD,
    CACHE,
    COUNT_SHIFT,
    ENTRY,
    GROUP,
    KEPT_BYTES,
    SHORT_BYTES,
    SHORT_IDS,
    STORED,
    Cache,
    copy_short_ids,
    copy_stored_ids,
    home_of,
    is_short_entry,
    key_by_bytes,
    put_into_store,
    short_key,
    swap,
)
from shared.bpe.kernels.pretoken_merging import NO_MEMORY, SHORT, merge_long, merge_short
from shared.bpe.kernels.scanner import scan
from shared.bpe.kernels.tables import TABLES, Tables, whole_token
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import load_word, prefetch, store_word
from shared.kernels.types import BYTES, INT64S, UINT32S, int64, uint64

# Entries that an output array needs beyond one for each byte, since ids are written several at a time.
SLACK = 16


@compiled(int64, TABLES, CACHE, BYTES, int64, int64, UINT32S, int64, inline=True)
def _merge_pretoken(
    tables: Tables,
    cache: Cache,
    text: npt.NDArray[np.uint8],
    start: int,
    length: int,
    out: npt.NDArray[np.uint32],
    filled: int,
) -> int:
    """Write the ids of a pretoken that is in no cache to `out[filled:]`; returns where they end."""
    cache.counters[0] += 1
    whole = whole_token(tables, text, start, start + length)
    if whole >= 0:
        out[filled] = whole
        return filled + 1
    if length <= SHORT:
        return merge_short(tables, text, start, length, cache.ids, cache.candidates, out, filled)
    return merge_long(tables, text, start, length, out, filled)


@compiled(types.void, CACHE, BYTES, int64, int64, uint64, uint64, int64, UINT32S, int64, int64, inline=True)
def _keep(
    cache: Cache,
    text: npt.NDArray[np.uint8],
    start: int,
    length: int,
    low: np.uint64,
    high: np.uint64,
    entry: int,
    out: npt.NDArray[np.uint32],
    filled: int,
    count: int,
) -> None:
    """Make an entry of a pretoken with the ids `out[filled : filled + count]`."""
    entries = cache.entries
    entries[entry] = low
    if length <= SHORT_BYTES and count <= SHORT_IDS:
        entries[entry + 1] = high | (np.uint64(count) << COUNT_SHIFT)
        entries[entry + 2] = load_word(out, filled)
        entries[entry + 3] = load_word(out, filled + 2)
    else:
        entries[entry + 1] = STORED
        entries[entry + 2] = put_into_store(cache, text, start, length, out, filled, count)
        entries[entry + 3] = high


@compiled(int64, TABLES, CACHE, BYTES, int64, int64, uint64, uint64, int64, UINT32S, int64)
def _encode_rare(
    tables: Tables,
    cache: Cache,
    text: npt.NDArray[np.uint8],
    start: int,
    length: int,
    low: np.uint64,
    high: np.uint64,
    home: int,
    out: npt.NDArray[np.uint32],
    filled: int,
) -> int:
    """Write the ids of a pretoken that is not a short one at home to `out[filled:]`.

    Returns:
        Where they end, or NO_MEMORY.
    """
    entries = cache.entries
    vacant = home ^ ENTRY
    for step in range(0, GROUP, ENTRY):
        entry = home ^ step
        second = load_word(entries, entry + 1)
        if second == 0:
            vacant = entry
            break
        done = filled
        if second == STORED:
            if load_word(entries, entry) == low and load_word(entries, entry + 3) == high:
                position = np.int64(load_word(entries, entry + 2))
                done = copy_stored_ids(cache, position, text, start, length, out, filled)
                if done == filled:
                    vacant = entry
                    break
        elif is_short_entry(entries, entry, low, high):
            done = copy_short_ids(entries, entry, out, filled)
        if done > filled:
            if step > 0:
                swap(entries, home, entry)
            return done
    done = _merge_pretoken(tables, cache, text, start, length, out, filled)
    if done != NO_MEMORY and length <= KEPT_BYTES:
        _keep(cache, text, start, length, low, high, vacant, out, filled, done - filled)
    return done


@compiled(int64, CACHE, BYTES, int64, INT64S, int64, int64)
def _prepare(
    cache: Cache,
    text: npt.NDArray[np.uint8],
    start: int,
    ends: npt.NDArray[np.int64],
    first: int,
    last: int,
) -> int:
    """Put keys and homes of the pretokens `first` to `last` into `cache.keys`, and prefetch the entries there.

    Returns:
        Where the last of them ends.
    """
    keys, entries = cache.keys, cache.entries
    loadable = text.size - 16
    slot = 0
    for pretoken in range(first, last):
        end = np.int64(load_word(ends, pretoken))
        length = end - start
        if length <= SHORT_BYTES and start <= loadable:
            low, high = short_key(text, start, length)
        else:
            low, high = key_by_bytes(text, start, length)
        home = home_of(entries, low, high)
        prefetch(entries, np.int64(home))
        store_word(keys, slot, low)
        store_word(keys, slot + 1, high)
        store_word(keys, slot + 2, home)
        slot += 3
        start = end
    return start


@compiled(int64, TABLES, CACHE, BYTES, int64, INT64S, int64, UINT32S, int64)
def encode_pretokens(
    tables: Tables,
    cache: Cache,
    text: npt.NDArray[np.uint8],
    start: int,
    ends: npt.NDArray[np.int64],
    num_pretokens: int,
    out: npt.NDArray[np.uint32],
    filled: int,
) -> int:
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
    keys, entries = cache.keys, cache.entries
    ahead = start
    for first in range(0, num_pretokens, AHEAD):
        last = min(first + AHEAD, num_pretokens)
        ahead = _prepare(cache, text, ahead, ends, first, last)
        slot = 0
        for pretoken in range(first, last):
            end = np.int64(load_word(ends, pretoken))
            low, high, home = load_word(keys, slot), load_word(keys, slot + 1), np.int64(load_word(keys, slot + 2))
            slot += 3
            if is_short_entry(entries, home, low, high):
                filled = copy_short_ids(entries, home, out, filled)
            else:
                filled = _encode_rare(tables, cache, text, start, end - start, low, high, home, out, filled)
                if filled == NO_MEMORY:
                    return filled
            start = end
    return filled


@compiled(
    types.UniTuple(int64, ("reached", "filled")),
    *(TABLES, CACHE, int64, BYTES, BYTES, int64, int64, INT64S, UINT32S, int64),
)
def encode_text(
    tables: Tables,
    cache: Cache,
    pattern: int,
    classes: npt.NDArray[np.uint8],
    data: npt.NDArray[np.uint8],
    start: int,
    end: int,
    cuts: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint32],
    filled: int,
) -> tuple[int, int]:
    """Write the ids of a text to `out[filled:]`.

    Args:
        tables: The vocabulary.
        cache: The caller's own.
        pattern: A value of `scanner.PATTERN_IDS`.
        classes: `character_classes()`.
        data: Holds the text, UTF-8.
        start: Where it begins.
        end: Where it ends.
        cuts: Scratch of at least `scanner.MIN_CUTS`.
        out: At least one entry for each byte, and SLACK more.
        filled: Entries of `out` that are taken already.

    Returns:
        How far it came, before `end` once `cache.counters[0]` has reached `cache.counters[1]`: the cache is small for
        such a text, go on with another. And where the ids end, or NO_MEMORY.
    """
    while start < end and cache.counters[0] < cache.counters[1]:
        num_pretokens = scan(pattern, data, start, end, classes, cuts)
        filled = encode_pretokens(tables, cache, data, start, cuts, num_pretokens, out, filled)
        if filled == NO_MEMORY:
            break
        start = cuts[num_pretokens - 1]
    return start, filled


@compiled(types.void, TABLES, CACHE, int64, BYTES, BYTES, INT64S, INT64S, int64, INT64S, UINT32S, INT64S, INT64S)
def encode_texts(
    tables: Tables,
    cache: Cache,
    pattern: int,
    classes: npt.NDArray[np.uint8],
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    terminator: int,
    cuts: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint32],
    id_ends: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
) -> None:
    """`encode_text` for texts one after the other.

    Args:
        tables: As in `encode_text`.
        cache: As in `encode_text`.
        pattern: As in `encode_text`.
        classes: As in `encode_text`.
        data: Holds the texts.
        starts: Where each begins.
        ends: Where each ends.
        terminator: An id to put after each text but the last, or -1.
        cuts: As in `encode_text`.
        out: At least one entry for each byte and terminator, and SLACK more.
        id_ends: Where the ids of each text end.
        state: How far it came: the text, the byte of it, and the place in `out` or NO_MEMORY. Zeros at first; as long
            as texts are left, go on with another cache and everything else as it is.
    """
    text, done, filled = state[0], state[1], state[2]
    while text < ends.size:
        start, end = starts[text] + done, ends[text]
        reached, filled = encode_text(tables, cache, pattern, classes, data, start, end, cuts, out, filled)
        done = reached - starts[text]
        if reached < end:
            break
        done = 0
        if terminator >= 0 and text + 1 < ends.size:
            out[filled] = terminator
            filled += 1
        id_ends[text] = filled
        text += 1
    state[0], state[1], state[2] = text, done, filled
