"""Finding a token by its bytes: two merges may spell the same.

A token's hash is a polynomial in its bytes, so that of a merge follows from those of its parts (Karp and Rabin, 1987,
https://doi.org/10.1147/rd.312.0249).
"""

import numpy as np

from shared.bpe.kernels.pairs import ABSENT, Tokens, pair_slot, spelling_prefix
from shared.kernels.compiling import compiled
from shared.kernels.types import Int64Array, boolean, int64

_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)


@compiled
def describe_token(tokens: Tokens, token: int64, place: int64, length: int64) -> None:
    """Enter a token that is spelled at a place of the text."""
    entry = tokens.entries[token]
    entry.place = place
    entry.length = length
    entry.prefix = spelling_prefix(tokens.text, place, length)
    hashed, power = np.uint64(0), np.uint64(1)
    for offset in range(place, place + length):
        hashed = hashed * _HASH_BASE + np.uint64(tokens.text[offset]) + np.uint64(1)
        power *= _HASH_BASE
    entry.hash = hashed
    entry.power = power


@compiled
def is_spelled(tokens: Tokens, token: int64, left: int64, right: int64) -> boolean:
    """Whether a token is spelled like two others together."""
    text = tokens.text
    first, second, whole = tokens.entries[left], tokens.entries[right], tokens.entries[token]
    if whole.length != first.length + second.length:
        return False
    for offset in range(first.length):
        if text[whole.place + offset] != text[first.place + offset]:
            return False
    for offset in range(second.length):
        if text[whole.place + first.length + offset] != text[second.place + offset]:
            return False
    return True


@compiled
def find_spelling(tokens: Tokens, left: int64, right: int64) -> int64:
    """The token that is spelled like two others together, or ABSENT."""
    entries, spellings = tokens.entries, tokens.spellings
    hashed = entries[left].hash * entries[right].power + entries[right].hash
    slot = pair_slot(0, np.int64(hashed >> np.uint64(1)), spellings.size)
    while spellings[slot] != ABSENT:
        token = spellings[slot]
        if entries[token].hash == hashed and is_spelled(tokens, token, left, right):
            return token
        slot = slot + 1 & spellings.size - 1
    return ABSENT


@compiled
def add_token(tokens: Tokens, token: int64, place: int64, length: int64) -> None:
    """Enter a token that is spelled at a place of the text, and make it known to `find_spelling`."""
    describe_token(tokens, token, place, length)
    spellings = tokens.spellings
    slot = pair_slot(0, np.int64(tokens.entries[token].hash >> np.uint64(1)), spellings.size)
    while spellings[slot] != ABSENT:
        slot = slot + 1 & spellings.size - 1
    spellings[slot] = token


@compiled
def add_tokens(tokens: Tokens, ids: Int64Array, lengths: Int64Array) -> None:
    """Enter tokens that are spelled side by side, from the beginning of the text on."""
    place = np.int64(0)
    for entry in range(ids.size):
        add_token(tokens, ids[entry], place, lengths[entry])
        place += lengths[entry]
