"""Pieces to ids: most were seen before, and the cache answers for them; merging is left for the rest."""

import numpy as np
import numpy.typing as npt

from shared.bpe.kernels import types
from shared.bpe.kernels.compiling import compiled
from shared.bpe.kernels.intrinsics import load_word, prefetch, store_word
from shared.bpe.kernels.piece_cache import (
    AHEAD,
    CACHE,
    COUNT_SHIFT,
    HIGH,
    LENGTH_SHIFT,
    NARROW_BUCKET,
    NARROW_BYTES,
    NARROW_IDS,
    NARROW_WORDS,
    RING,
    WIDE_BUCKET,
    WIDE_BYTES,
    WIDE_WORDS,
    Cache,
    bytes_as_word,
    hash_key,
    hash_piece,
    is_narrow_entry,
    is_wide_entry,
    swap,
)
from shared.bpe.kernels.piece_merging import NO_MEMORY, SHORT, merge_long, merge_short
from shared.bpe.kernels.scanner import scan
from shared.bpe.kernels.tables import TABLES, Tables, whole_token
from shared.bpe.kernels.types import BYTES, INT64S, UINT32S, int64, uint64

# Entries that an output array needs beyond one for each byte, since ids are written several at a time.
SLACK = 16


@compiled(int64, TABLES, CACHE, BYTES, int64, int64, UINT32S, int64)
def _merge_piece(
    tables: Tables,
    cache: Cache,
    text: npt.NDArray[np.uint8],
    start: int,
    length: int,
    out: npt.NDArray[np.uint32],
    filled: int,
) -> int:
    """Write the ids of a piece that is in no cache to `out[filled:]`; returns where they end."""
    cache.counters[0] += 1
    whole = whole_token(tables, text, start, start + length)
    if whole >= 0:
        out[filled] = whole
        return filled + 1
    if length <= SHORT:
        return merge_short(tables, text, start, length, cache.ids, cache.candidates, out, filled)
    return merge_long(tables, text, start, length, out, filled)


@compiled(int64, TABLES, CACHE, BYTES, int64, int64, uint64, UINT32S, int64)
def _encode_wide(
    tables: Tables,
    cache: Cache,
    text: npt.NDArray[np.uint8],
    start: int,
    length: int,
    hashed: np.uint64,
    out: npt.NDArray[np.uint32],
    filled: int,
) -> int:
    """Write the ids of a piece of at most WIDE_BYTES bytes to `out[filled:]`; returns where they end."""
    wide = cache.wide
    first = np.int64(hashed & np.uint64(wide.size // WIDE_BUCKET - 1)) * WIDE_BUCKET
    id_words = 1 + ((length + 7) >> 3)  # where the ids begin in an entry
    vacant = first + WIDE_BUCKET - WIDE_WORDS
    for entry in range(first, first + WIDE_BUCKET, WIDE_WORDS):
        if wide[entry] == 0:
            vacant = entry
            break
        if is_wide_entry(wide, entry, text, start, length):
            count = np.int64(wide[entry] >> HIGH)
            for word in range((count + 1) >> 1):
                store_word(out, filled + 2 * word, wide[entry + id_words + word])
            if entry != first:
                swap(wide, entry - WIDE_WORDS, entry, WIDE_WORDS)
            return filled + count
    done = _merge_piece(tables, cache, text, start, length, out, filled)
    if done == NO_MEMORY:
        return done
    count = done - filled
    is_narrow = length <= NARROW_BYTES and count <= NARROW_IDS
    if not is_narrow and id_words + ((count + 1) >> 1) <= WIDE_WORDS:
        wide[vacant] = np.uint64(length) | (np.uint64(count) << HIGH)
        for place in range(0, length, 8):
            wide[vacant + 1 + (place >> 3)] = bytes_as_word(text, start + place, min(8, length - place))
        for word in range((count + 1) >> 1):
            wide[vacant + id_words + word] = load_word(out, filled + 2 * word)
    return done


@compiled(int64, TABLES, CACHE, BYTES, int64, int64, uint64, uint64, int64, UINT32S, int64)
def _encode_narrow(
    tables: Tables,
    cache: Cache,
    text: npt.NDArray[np.uint8],
    start: int,
    length: int,
    low: np.uint64,
    high: np.uint64,
    first: int,
    out: npt.NDArray[np.uint32],
    filled: int,
) -> int:
    """Write the ids of a piece that is not in the first two places of its bucket; returns where they end."""
    narrow = cache.narrow
    vacant = first + NARROW_BUCKET - NARROW_WORDS
    for entry in range(first, first + NARROW_BUCKET, NARROW_WORDS):
        if is_narrow_entry(narrow, entry, low, high):
            count = np.int64(narrow[entry + 1] >> COUNT_SHIFT)
            store_word(out, filled, narrow[entry + 2])
            store_word(out, filled + 2, narrow[entry + 3])
            swap(narrow, entry - NARROW_WORDS, entry, NARROW_WORDS)
            return filled + count
        if narrow[entry + 1] == 0:
            vacant = entry
            break
    done = _encode_wide(tables, cache, text, start, length, hash_piece(text, start, length), out, filled)
    count = done - filled
    if count <= NARROW_IDS:
        narrow[vacant] = low
        narrow[vacant + 1] = high | (np.uint64(count) << COUNT_SHIFT)
        narrow[vacant + 2] = load_word(out, filled)
        narrow[vacant + 3] = load_word(out, filled + 2)
    return done


@compiled(types.void, CACHE, BYTES, int64, int64, int64, uint64, uint64, inline=True)
def _prepare(
    cache: Cache,
    text: npt.NDArray[np.uint8],
    start: int,
    length: int,
    slot: int,
    narrow_mask: np.uint64,
    wide_mask: np.uint64,
) -> None:
    """Put the key and the bucket of a piece into three words of `cache.keys`, and ask for the bucket."""
    keys = cache.keys
    if length <= NARROW_BYTES:
        high = np.uint64(length) << LENGTH_SHIFT
        if length > 8:
            low = bytes_as_word(text, start, 8)
            high |= bytes_as_word(text, start + 8, length - 8)
        else:
            low = bytes_as_word(text, start, length)
        bucket = (hash_key(low, high) & narrow_mask) * np.uint64(NARROW_BUCKET)
        prefetch(cache.narrow, np.int64(bucket))
        store_word(keys, slot, low)
        store_word(keys, slot + 1, high)
        store_word(keys, slot + 2, bucket)
    elif length <= WIDE_BYTES:
        hashed = hash_piece(text, start, length)
        prefetch(cache.wide, np.int64(hashed & wide_mask) * WIDE_BUCKET)
        store_word(keys, slot, hashed)


@compiled(int64, TABLES, CACHE, BYTES, int64, INT64S, int64, UINT32S, int64)
def encode_pieces(
    tables: Tables,
    cache: Cache,
    text: npt.NDArray[np.uint8],
    start: int,
    ends: npt.NDArray[np.int64],
    num_pieces: int,
    out: npt.NDArray[np.uint32],
    filled: int,
) -> int:
    """Write the ids of pieces that follow one another to `out[filled:]`; returns where they end, or NO_MEMORY.

    Args:
        tables: The vocabulary.
        cache: The caller's own.
        text: UTF-8.
        start: Where the first piece begins.
        ends: Where each piece ends.
        num_pieces: How many of them.
        out: At least one entry for each byte of the pieces, and SLACK more.
        filled: Entries of `out` that are taken already.
    """
    keys, narrow = cache.keys, cache.narrow
    narrow_mask = np.uint64(narrow.size // NARROW_BUCKET - 1)
    wide_mask = np.uint64(cache.wide.size // WIDE_BUCKET - 1)
    ahead = start
    for piece in range(num_pieces + AHEAD):
        if piece < num_pieces:
            end = np.int64(load_word(ends, piece))
            _prepare(cache, text, ahead, end - ahead, (piece & (RING - 1)) * 3, narrow_mask, wide_mask)
            ahead = end
        if piece >= AHEAD:
            slot = ((piece - AHEAD) & (RING - 1)) * 3
            end = np.int64(load_word(ends, piece - AHEAD))
            length = end - start
            low = load_word(keys, slot)
            if length <= NARROW_BYTES:
                high, bucket = load_word(keys, slot + 1), np.int64(load_word(keys, slot + 2))
                # The first two entries share a line: looking at both at once spares a branch that is hard to foresee.
                first = is_narrow_entry(narrow, bucket, low, high)
                second = is_narrow_entry(narrow, bucket + NARROW_WORDS, low, high)
                if first | second:
                    entry = bucket if first else bucket + NARROW_WORDS
                    store_word(out, filled, load_word(narrow, entry + 2))
                    store_word(out, filled + 2, load_word(narrow, entry + 3))
                    filled += np.int64(load_word(narrow, entry + 1) >> COUNT_SHIFT)
                else:
                    filled = _encode_narrow(tables, cache, text, start, length, low, high, bucket, out, filled)
            elif length <= WIDE_BYTES:
                filled = _encode_wide(tables, cache, text, start, length, low, out, filled)
            else:
                filled = _merge_piece(tables, cache, text, start, length, out, filled)
            if filled == NO_MEMORY:
                return filled
            start = end
    return filled


@compiled(types.UniTuple(int64, 2), TABLES, CACHE, int64, BYTES, BYTES, int64, int64, INT64S, UINT32S, int64)
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
        num_pieces = scan(pattern, data, start, end, classes, cuts)
        filled = encode_pieces(tables, cache, data, start, cuts, num_pieces, out, filled)
        if filled == NO_MEMORY:
            break
        start = cuts[num_pieces - 1]
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
