r"""Where text may be cut before its pretokens are known: special tokens, and places where every named pattern cuts.

Independently of the text around, a pretoken ends

1. before a blank that follows a character that is not white space, and before a newline that follows a letter or a
   number: no alternative lets such white space follow these, and none looks back;
2. between a letter and a character that is no letter, mark or white space, nor the apostrophe of a contraction: what
   takes letters takes none of these behind them;
3. after a newline alone between a character that is not white space and a letter: others may take the newline
   with them, but no alternative lets a newline precede letters.

Special tokens are given as `specials`, the bytes of all, those with one first byte together and the longest of them
first, and `offsets`, where each begins, with the end.
"""

import numpy as np

from shared.bpe.kernels.classes import CASELESS, NUMBER, OTHER, SPACE, UPPER
from shared.bpe.kernels.utf8 import code_point, is_valid_character
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import BLOCK, byte_range_mask, trailing_zeros
from shared.kernels.types import BYTES, INT64S

_NONE = np.uint64(0)
_ONE = np.uint64(1)
_LINE_FEED, _BLANK, _APOSTROPHE = 0x0A, 0x20, 0x27


@compiled(types.int64, BYTES, types.int64, types.int64, BYTES, INT64S)
def special_at(data, index, end, specials, offsets):
    """The length of the longest special token at an index, 0 if there is none."""
    for special in range(offsets.size - 1):
        length = offsets[special + 1] - offsets[special]
        if index + length > end:
            continue
        offset = 0
        while offset < length and data[index + offset] == specials[offsets[special] + offset]:
            offset += 1
        if offset == length:
            return length
    return 0


@compiled(types.uint64, BYTES, types.int64, types.int64, BYTES, INT64S)
def special_beginnings(data, base, end, specials, offsets):
    """A mask of the 64 bytes from base on: where the first byte of a special token lies."""
    mask = _NONE
    previous = -1
    for special in range(offsets.size - 1):
        first = specials[offsets[special]]
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


@compiled(types.UniTuple(types.int64, ("begin", "length")), BYTES, types.int64, types.int64, BYTES, INT64S)
def find_special(data, begin, end, specials, offsets):
    """The place and length of the first special token in `data[begin:end]`; `end` and 0 if there is none."""
    if offsets.size > 1:
        for base in range(begin, end, BLOCK):
            mask = special_beginnings(data, base, end, specials, offsets)
            while mask:
                index = base + trailing_zeros(mask)
                mask &= mask - _ONE
                length = special_at(data, index, end, specials, offsets)
                if length:
                    return index, length
    return end, 0


@compiled(types.int64, BYTES, types.int64, BYTES)
def class_before(data, index, classes):
    """The class of the well-formed character that ends at an index, -1 if none does."""
    for length in range(1, min(index, 4) + 1):
        first = index - length
        if data[first] & 0xC0 != 0x80:
            if is_valid_character(data, first, index):
                return np.int64(classes[code_point(data, first, index)])
            return -1
    return -1


@compiled(types.boolean, types.int64, types.int64, inline=True)
def cuts_white_space(byte, before):
    """Whether every named pattern cuts in front of a blank or newline that follows a character of a class."""
    if byte == _BLANK:
        return before != -1 and before != SPACE
    return UPPER <= before <= NUMBER


@compiled(types.boolean, types.int64, inline=True)
def is_letter(character_class):
    r"""Whether a class is in \p{L}."""
    return UPPER <= character_class <= CASELESS


@compiled(types.boolean, BYTES, types.int64, types.int64, BYTES)
def pattern_cuts(data, index, end, classes):
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


@compiled(types.boolean, BYTES, types.int64, types.int64, BYTES, INT64S)
def special_lies_across(data, index, end, specials, offsets):
    """Whether a special token begins before an index and ends behind it."""
    longest = 0
    for special in range(offsets.size - 1):
        longest = max(longest, offsets[special + 1] - offsets[special])
    for begin in range(max(0, index - longest + 1), index):
        for special in range(offsets.size - 1):
            length = offsets[special + 1] - offsets[special]
            if begin + length > index and special_at(data, begin, end, specials, offsets[special : special + 2]):
                return True
    return False


@compiled(types.int64, BYTES, types.int64, types.int64, BYTES, BYTES, INT64S)
def next_cut(data, begin, end, classes, specials, offsets):
    """The first place in `data[begin:end]`, beyond the first two bytes, where text may be cut; `end` if there is none.

    No text that is cut there at once, and none cut further on, is counted differently for it.
    """
    for index in range(max(begin, 2), end):
        if pattern_cuts(data, index, end, classes) and not special_lies_across(data, index, end, specials, offsets):
            return index
    return end
