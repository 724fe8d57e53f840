r"""Where text may be cut before its pretokens are known: special tokens, and places where every named pattern cuts.

Independently of the text around, a pretoken ends

1. before a blank that follows a character that is not white space, and before a newline that follows a letter or a
   number: no alternative lets such white space follow these, and none looks back;
2. between a letter and a character that is no letter, mark or white space, nor the apostrophe of a contraction: what
   takes letters takes none of these behind them;
3. after a newline alone between a character that is not white space and a letter: others may take the newline
   with them, but no alternative lets a newline precede letters.
"""

from typing import NamedTuple

import numpy as np

from shared.bpe.kernels.classes import CASELESS, NUMBER, OTHER, SPACE, UPPER
from shared.bpe.kernels.utf8 import code_point, is_valid_character
from shared.kernels.compiling import compiled, inlined
from shared.kernels.intrinsics import BLOCK, byte_range_mask, trailing_zeros
from shared.kernels.types import Bytes, Int64Array, boolean, int64, uint64

_NONE = np.uint64(0)
_ONE = np.uint64(1)
_LINE_FEED, _BLANK, _APOSTROPHE = 0x0A, 0x20, 0x27


class SpecialTokens(NamedTuple):
    """The bytes of all, those with one first byte together, the longest first; where each begins, with the end."""

    text: Bytes
    offsets: Int64Array


class Place(NamedTuple):
    """Where a special token is, and its length."""

    begin: int64
    length: int64


@compiled
def spells(data: Bytes, index: int64, end: int64, specials: SpecialTokens, special: int64) -> boolean:
    """Whether a special token lies at an index."""
    first = specials.offsets[special]
    length = specials.offsets[special + 1] - first
    if index + length > end:
        return False
    offset = 0
    while offset < length and data[index + offset] == specials.text[first + offset]:
        offset += 1
    return offset == length


@compiled
def special_at(data: Bytes, index: int64, end: int64, specials: SpecialTokens) -> int64:
    """The length of the longest special token at an index, 0 if there is none."""
    for special in range(specials.offsets.size - 1):
        if spells(data, index, end, specials, special):
            return specials.offsets[special + 1] - specials.offsets[special]
    return 0


@compiled
def special_beginnings(data: Bytes, base: int64, end: int64, specials: SpecialTokens) -> uint64:
    """A mask of the 64 bytes from base on: where the first byte of a special token lies."""
    mask = _NONE
    previous = -1
    for special in range(specials.offsets.size - 1):
        first = specials.text[specials.offsets[special]]
        if first == previous:
            continue
        previous = np.int64(first)
        if base + BLOCK <= end:
            mask |= byte_range_mask(data, base, 0, first, 1)
        else:
            for index in range(base, end):
                if data[index] == first:
                    mask |= _ONE << np.uint64(index - base)
    return mask


@compiled
def find_special(data: Bytes, begin: int64, end: int64, specials: SpecialTokens) -> Place:
    """The place and length of the first special token in `data[begin:end]`; `end` and 0 if there is none."""
    if specials.offsets.size > 1:
        for base in range(begin, end, BLOCK):
            mask = special_beginnings(data, base, end, specials)
            while mask:
                index = base + trailing_zeros(mask)
                mask &= mask - _ONE
                length = special_at(data, index, end, specials)
                if length:
                    return Place(index, length)
    return Place(end, 0)


@compiled
def find_all(data: Bytes, specials: SpecialTokens, places: Int64Array) -> int64:
    """Write where the first special token is to `places`, which has room for all; returns how many there are.

    None overlaps the one before. Most blocks of text have its first and its last byte nowhere at this distance.
    """
    size, first, last = specials.offsets[1], specials.text[0], specials.text[specials.offsets[1] - 1]
    count = free = 0
    end = data.size - size + 1
    for base in range(0, end, BLOCK):
        mask = ~_NONE
        if base + size - 1 + BLOCK <= data.size:
            mask = byte_range_mask(data, base, 0, first, 1) & byte_range_mask(data, base + size - 1, 0, last, 1)
        while mask:
            index = base + trailing_zeros(mask)
            mask &= mask - _ONE
            if index >= free and spells(data, index, data.size, specials, 0):
                places[count] = index
                count += 1
                free = index + size
    return count


@compiled
def class_before(data: Bytes, index: int64, classes: Bytes) -> int64:
    """The class of the well-formed character that ends at an index, -1 if none does."""
    for length in range(1, min(index, 4) + 1):
        first = index - length
        if data[first] & 0xC0 != 0x80:
            if is_valid_character(data, first, index):
                return np.int64(classes[code_point(data, first, index)])
            return -1
    return -1


@inlined
def cuts_white_space(byte: int64, before: int64) -> boolean:
    """Whether every named pattern cuts in front of a blank or newline that follows a character of a class."""
    if byte == _BLANK:
        return before != -1 and before != SPACE
    return UPPER <= before <= NUMBER


@inlined
def is_letter(character_class: int64) -> boolean:
    r"""Whether a class is in \p{L}."""
    return UPPER <= character_class <= CASELESS


@compiled
def pattern_cuts(data: Bytes, index: int64, end: int64, classes: Bytes) -> boolean:
    """Whether every named pattern cuts in front of an index, by one of the rules above."""
    byte = data[index]
    if byte == _BLANK or byte == _LINE_FEED:
        return cuts_white_space(np.int64(byte), class_before(data, index, classes))
    if byte == _APOSTROPHE or not is_valid_character(data, index, end):
        return False
    here = np.int64(classes[code_point(data, index, end)])
    if data[index - 1] == _LINE_FEED:
        before = class_before(data, index - 1, classes)
        return is_letter(here) and before != -1 and before != SPACE
    return (here == OTHER or here == NUMBER) and is_letter(class_before(data, index, classes))


@compiled
def special_lies_across(data: Bytes, index: int64, end: int64, specials: SpecialTokens) -> boolean:
    """Whether a special token begins before an index and ends behind it."""
    longest = 0
    for special in range(specials.offsets.size - 1):
        longest = max(longest, specials.offsets[special + 1] - specials.offsets[special])
    for begin in range(max(0, index - longest + 1), index):
        for special in range(specials.offsets.size - 1):
            length = specials.offsets[special + 1] - specials.offsets[special]
            if begin + length > index and spells(data, begin, end, specials, special):
                return True
    return False


@compiled
def next_cut(data: Bytes, begin: int64, end: int64, classes: Bytes, specials: SpecialTokens) -> int64:
    """The first place in `data[begin:end]`, beyond the first two bytes, where text may be cut; `end` if there is none.

    No text that is cut there at once, and none cut further on, is counted differently for it.
    """
    for index in range(max(begin, 2), end):
        if pattern_cuts(data, index, end, classes) and not special_lies_across(data, index, end, specials):
            return index
    return end
