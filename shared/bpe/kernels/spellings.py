"""Finding a token by its bytes: two merges may spell the same.

A token's hash is a polynomial in its bytes, so that of a merge follows from those of its parts (Karp and Rabin, 1987,
https://doi.org/10.1147/rd.312.0249).
"""

import numpy as np

from shared.bpe.kernels.pairs import ABSENT, INDEX, TOKENS, pair_slot, spelling_prefix
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.types import BYTES, INT64S

_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)


@compiled(types.void, BYTES, TOKENS, types.int64, types.int64, types.int64)
def describe_token(text, tokens, token, place, length):
    """Enter a token that is spelled at a place of the text."""
    tokens[token].place = place
    tokens[token].length = length
    tokens[token].prefix = spelling_prefix(text, place, length)
    hashed, power = np.uint64(0), np.uint64(1)
    for offset in range(place, place + length):
        hashed = hashed * _HASH_BASE + np.uint64(text[offset]) + np.uint64(1)
        power *= _HASH_BASE
    tokens[token].hash = hashed
    tokens[token].power = power


@compiled(types.boolean, BYTES, TOKENS, types.int64, types.int64, types.int64)
def is_spelled(text, tokens, token, left, right):
    """Whether a token is spelled like two others together."""
    first, second, whole = tokens[left], tokens[right], tokens[token]
    if whole.length != first.length + second.length:
        return False
    for offset in range(first.length):
        if text[whole.place + offset] != text[first.place + offset]:
            return False
    for offset in range(second.length):
        if text[whole.place + first.length + offset] != text[second.place + offset]:
            return False
    return True


@compiled(types.int64, BYTES, TOKENS, INDEX, types.int64, types.int64)
def find_spelling(text, tokens, spellings, left, right):
    """The token that is spelled like two others together, or ABSENT."""
    hashed = tokens[left].hash * tokens[right].power + tokens[right].hash
    slot = pair_slot(0, np.int64(hashed >> np.uint64(1)), spellings.size)
    while spellings[slot] != ABSENT:
        token = spellings[slot]
        if tokens[token].hash == hashed and is_spelled(text, tokens, token, left, right):
            return token
        slot = slot + 1 & spellings.size - 1
    return ABSENT


@compiled(types.void, TOKENS, INDEX, types.int64)
def add_spelling(tokens, spellings, token):
    """Make a token known to `find_spelling`."""
    slot = pair_slot(0, np.int64(tokens[token].hash >> np.uint64(1)), spellings.size)
    while spellings[slot] != ABSENT:
        slot = slot + 1 & spellings.size - 1
    spellings[slot] = token


@compiled(types.void, BYTES, TOKENS, INDEX, INT64S, INT64S)
def enter_tokens(text, tokens, spellings, ids, lengths):
    """Enter tokens that are spelled side by side, from the beginning of the text on."""
    place = np.int64(0)
    for entry in range(ids.size):
        describe_token(text, tokens, ids[entry], place, lengths[entry])
        add_spelling(tokens, spellings, ids[entry])
        place += lengths[entry]
