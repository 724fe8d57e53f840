"""The merges of a vocabulary as flat tables, for compiled code to look up.

pair_slots    one uint64 a slot, at most half full: | left id: 21 bits | right id: 21 bits | rank: 22 bits |
              all ones: empty. A pair lies in one of two slots (cuckoo hashing, Pagh and Rodler 2004,
              https://doi.org/10.1016/j.jalgor.2003.12.002), so that looking it up takes no branch
byte_ranks    the ranks of pairs of single bytes, at `first + 256 * second`
merged        the id that a merge of this rank gives; only that of the first where the others follow one by one
byte_ids      the id of each single byte, NO_TOKEN where it has none: no text has such bytes
whole_slots   token id + 1 (0: empty), by the hash of the token's bytes; only where a pretoken that is a token as a
              whole needs no merges, else one empty slot
token_bytes   the bytes of all tokens, end to end; token `id` is token_bytes[token_starts[id]:token_starts[id + 1]];
              as whole_slots
first_part    with byte fallback, the first of the ids of *parts*: the beginnings of characters, see below
parts         the bytes of each part, the first of them lowest; empty for byte-level BPE
fallback      the id of the token of each byte, for the bytes of parts that are left; as parts

With byte fallback, text is merged from its characters. They are made by merges of their own, from bytes, through parts
without a token; these merges come before all others, so that every character is whole by then. A part that is left
belongs to a character without a token, and becomes the tokens of its bytes.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shared.bpe.vocabulary import MAX_ID, Vocabulary
from shared.kernels.compiling import compiled, compiled_and_inlined, inlined
from shared.kernels.intrinsics import leading_zeros
from shared.kernels.types import Bytes, Int64Array, Uint32Array, Uint64Array, boolean, int64, uint32, uint64

# Two that are in no pair: of a byte that has no token, and of what is not there.
NO_TOKEN, NO_ID = np.uint32(MAX_ID + 1), np.uint32(MAX_ID + 2)
NO_RANK = np.uint32(0xFFFFFFFF)

_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_ID_BITS = np.uint64(21)
_RANK_BITS = np.uint64(22)
_RANK_MASK = np.uint64((1 << 22) - 1)
# Odd numbers whose multiples have well mixed high bits (Knuth, TAOCP 3, 6.4: the first is the golden ratio times 2^64).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SPREAD_TOO = np.uint64(0xC2B2AE3D27D4EB4F)
_HIGH = np.uint64(32)
_ONE = np.uint64(1)
# Pairs that have been moved for one new pair, after which the table counts as too small.
_MOST_MOVES = 500


class Tables(NamedTuple):
    """See the module."""

    byte_ids: Uint32Array
    pair_slots: Uint64Array
    byte_ranks: Uint32Array
    merged: Uint32Array
    whole_slots: Uint32Array
    token_bytes: Bytes
    token_starts: Int64Array
    first_part: int64
    parts: Uint32Array
    fallback: Uint32Array


@compiled_and_inlined
def pack_pair(left: uint32, right: uint32) -> uint64:
    """Two ids in 42 bits."""
    return (np.uint64(left) << _ID_BITS) | np.uint64(right)


@inlined
def _slot_of(slots: Uint64Array, pair: uint64, spread: uint64) -> uint64:
    return (pair * spread) >> np.uint64(leading_zeros(np.uint64(slots.size) - _ONE))


@compiled_and_inlined
def rank_of_pair(slots: Uint64Array, left: uint32, right: uint32) -> uint32:
    """The rank of the merge of two ids, NO_RANK if there is none."""
    pair = pack_pair(left, right)
    # What is left of an entry that has this pair is its rank; of others more is left.
    ours = pair << _RANK_BITS
    rest = min(slots[_slot_of(slots, pair, _SPREAD)] ^ ours, slots[_slot_of(slots, pair, _SPREAD_TOO)] ^ ours)
    return np.uint32(rest) if rest <= _RANK_MASK else NO_RANK


@compiled
def fill_pairs(slots: Uint64Array, lefts: Uint32Array, rights: Uint32Array) -> boolean:
    """Enter pairs in order of rank; returns whether there was room.

    Of a pair that is listed twice the last counts, as in Hugging Face's tokenizers.
    """
    for rank in range(lefts.size):
        pair = pack_pair(lefts[rank], rights[rank])
        entry = (pair << _RANK_BITS) | np.uint64(rank)
        first, second = _slot_of(slots, pair, _SPREAD), _slot_of(slots, pair, _SPREAD_TOO)
        if slots[second] >> _RANK_BITS == pair:
            slots[second] = entry
            continue
        if slots[first] >> _RANK_BITS == pair:
            slots[first] = entry
            continue
        slot, moves = first, 0
        # The previous occupant moves to its other slot.
        while entry != _EMPTY:
            if moves > _MOST_MOVES:
                return False
            slots[slot], entry = entry, slots[slot]
            pair = entry >> _RANK_BITS
            slot = _slot_of(slots, pair, _SPREAD) ^ _slot_of(slots, pair, _SPREAD_TOO) ^ slot
            moves += 1
    return True


@compiled
def fill_byte_ranks(slots: Uint64Array, byte_ids: Uint32Array, ranks: Uint32Array) -> None:
    """Look up all pairs of single bytes."""
    for second in range(256):
        for first in range(256):
            ranks[first + 256 * second] = rank_of_pair(slots, byte_ids[first], byte_ids[second])


@inlined
def merged_id(merged: Uint32Array, rank: uint32) -> uint32:
    """The id that a merge gives."""
    return merged[0] + rank if merged.size == 1 else merged[np.int64(rank)]


@compiled
def hash_bytes(data: Bytes, start: int64, end: int64) -> uint64:
    """A hash of a few bytes, with its best bits on top (FNV-1a, then spread)."""
    value = np.uint64(0xCBF29CE484222325)
    for place in range(start, end):
        value = (value ^ np.uint64(data[place])) * np.uint64(0x100000001B3)
    return value * _SPREAD


@compiled
def fill_whole_tokens(slots: Uint32Array, token_bytes: Bytes, token_starts: Int64Array, ids: Uint32Array) -> None:
    """Enter tokens by the hash of their bytes."""
    mask = np.uint64(slots.size) - _ONE
    for token_id in ids:
        place = hash_bytes(token_bytes, token_starts[token_id], token_starts[token_id + 1]) >> _HIGH
        while slots[place & mask] != 0:
            place += _ONE
        slots[place & mask] = token_id + np.uint32(1)


@compiled_and_inlined
def whole_token(tables: Tables, text: Bytes, start: int64, end: int64) -> int64:
    """The id of the token with exactly these bytes, -1 if there is none or merges decide alone."""
    slots = tables.whole_slots
    mask = np.uint64(slots.size) - _ONE
    if mask == 0:
        return -1
    place = hash_bytes(text, start, end) >> _HIGH
    while slots[place & mask] != 0:
        token_id = np.int64(slots[place & mask]) - 1
        first = tables.token_starts[token_id]
        length = end - start
        if tables.token_starts[token_id + 1] - first == length:
            same = 0
            while same < length and tables.token_bytes[first + same] == text[start + same]:
                same += 1
            if same == length:
                return token_id
        place += _ONE
    return -1


@compiled
def split_parts(tables: Tables, ids: Uint32Array, begin: int64, end: int64) -> int64:
    """Put the tokens of bytes for the parts of characters in `ids[begin:end]`; returns where the ids end then."""
    more = 0
    for place in range(begin, end):
        if ids[place] >= tables.first_part:
            part = tables.parts[np.int64(ids[place]) - tables.first_part]
            while part > 0xFF:
                part >>= np.uint32(8)
                more += 1
    done = end + more
    to = done
    place = end
    while to > place:
        place -= 1
        if ids[place] < tables.first_part:
            to -= 1
            ids[to] = ids[place]
            continue
        part = tables.parts[np.int64(ids[place]) - tables.first_part]
        num_bytes = 1 + (part > 0xFF) + (part > 0xFFFF)
        to -= num_bytes
        for offset in range(num_bytes):
            ids[to + offset] = tables.fallback[part & np.uint32(0xFF)]
            part >>= np.uint32(8)
    return done


def build_tables(vocabulary: Vocabulary) -> Tables:
    """Lay out a vocabulary."""
    byte_ids, characters = _units(vocabulary)
    merges = [*characters.merges, *vocabulary.merges]
    pair_slots = _pair_slots(np.fromiter(chain.from_iterable(merges), np.uint32, 2 * len(merges)).reshape(-1, 2))
    byte_ranks = np.empty(1 << 16, np.uint32)
    fill_byte_ranks(pair_slots, byte_ids, byte_ranks)
    whole_tokens = vocabulary.tokens if vocabulary.ignore_merges else {}
    token_bytes, token_starts = join_tokens(whole_tokens)
    whole_slots = np.zeros(_power_of_two(2 * len(whole_tokens)) if whole_tokens else 1, np.uint32)
    fill_whole_tokens(whole_slots, token_bytes, token_starts, np.fromiter(whole_tokens, np.uint32, len(whole_tokens)))
    return Tables(
        byte_ids=byte_ids,
        pair_slots=pair_slots,
        byte_ranks=byte_ranks,
        merged=_merged([*characters.merged, *vocabulary.merged]),
        whole_slots=whole_slots,
        token_bytes=token_bytes,
        token_starts=token_starts,
        first_part=characters.first_part,
        parts=np.array([int.from_bytes(part, "little") for part in characters.parts], np.uint32),
        fallback=np.array(vocabulary.byte_tokens, np.uint32),
    )


class _Characters(NamedTuple):
    """How characters are made from bytes: see the module."""

    first_part: int
    parts: list[bytes]
    merges: list[tuple[int, int]]
    merged: list[int]


def _units(vocabulary: Vocabulary) -> tuple[npt.NDArray[np.uint32], _Characters]:
    """The id that merging begins with for each byte, and the characters that these make."""
    ids, fallback = vocabulary.ids, vocabulary.byte_tokens
    if not fallback:
        byte_ids = [ids.get(bytes([byte]), NO_TOKEN) for byte in range(256)]
        return np.array(byte_ids, np.uint32), _Characters(int(NO_ID), [], [], [])
    known = {bytes([byte]): ids.get(bytes([byte]), token_id) for byte, token_id in enumerate(fallback)}
    byte_ids = [*known.values()]
    first_part = max((*vocabulary.spelled, *(token.id for token in vocabulary.added))) + 1
    parts: list[bytes] = []
    merges: dict[tuple[int, int], int] = {}
    for token, token_id in ids.items():
        # A character of several bytes, and no text of several characters: that has another first byte within.
        if len(token) == 1 or any(byte & 0xC0 != 0x80 for byte in token[1:]):
            continue
        for end in range(2, len(token)):
            if token[:end] not in known:
                known[token[:end]] = first_part + len(parts)
                parts.append(token[:end])
            merges[known[token[: end - 1]], known[token[end - 1 : end]]] = known[token[:end]]
        merges[known[token[:-1]], known[token[-1:]]] = token_id
    return np.array(byte_ids, np.uint32), _Characters(first_part, parts, [*merges], [*merges.values()])


def _merged(ids: Sequence[int]) -> npt.NDArray[np.uint32]:
    merged = np.array(ids, dtype=np.uint32)
    return merged[:1] if np.all(merged[1:] == merged[:-1] + 1) else merged


def _pair_slots(pairs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    lefts, rights = np.ascontiguousarray(pairs.T)
    size = _power_of_two(2 * len(pairs))
    while True:
        slots = np.full(size, _EMPTY)
        if fill_pairs(slots, lefts, rights):
            return slots
        size *= 2


def join_tokens(tokens: Mapping[int, bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes of all tokens end to end in order of id, and where each begins; an id without a token has none."""
    by_id = [tokens.get(token_id, b"") for token_id in range(max(tokens, default=-1) + 1)]
    starts = np.zeros(len(by_id) + 1, np.int64)
    np.cumsum([len(token) for token in by_id], out=starts[1:])
    return np.frombuffer(b"".join(by_id), np.uint8), starts


def _power_of_two(least: int) -> int:
    return 1 << max(1, (least - 1).bit_length())
