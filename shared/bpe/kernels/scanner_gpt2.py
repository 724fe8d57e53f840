r"""The cuts of GPT-2's pattern, 64 bytes at a time.

    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

A block of 64 bytes becomes four masks, one bit a byte: letters, numbers, white space, and others. All bytes of a
character have its class. Then a pretoken begins

- at a letter, number or other character that neither continues a run of its class nor follows a blank, which the run
  takes with it;
- at white space that begins a run, or that ends a run of several before something else: `\s+(?!\S)` leaves it over.
  The end of the text counts as white space here. White space of several bytes looks ahead from its first one;
- after a contraction, and not inside it. Its apostrophe is one where a pretoken begins.

    bytes    W e ' r e _ _ h i !        _ is a blank
    letters  1 1 0 1 1 0 0 1 1 0
    spaces   0 0 0 0 0 1 1 0 0 0
    begins   1 0 1 0 0 1 1 0 0 1        without the contraction there would be one at r

White space needs the first bits of the next block, so masks are made one block ahead.
"""

from typing import NamedTuple

import numpy as np

from shared.bpe.kernels.classes import CASELESS, LOWER, NUMBER, SPACE, UPPER
from shared.bpe.kernels.utf8 import character_length, code_point
from shared.kernels.compiling import compiled, inlined
from shared.kernels.intrinsics import BLOCK, byte_range_mask, store_set_bits, trailing_zeros
from shared.kernels.types import Bytes, Int64Array, int64, uint8, uint64

NONE = np.uint64(0)
ONE = np.uint64(1)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_LETTERS = np.uint64(1 << UPPER | 1 << LOWER | 1 << CASELESS)


class WideMasks(NamedTuple):
    """Of characters of several bytes; `double` and `triple` are the first bytes of white space of two and three."""

    letters: uint64
    numbers: uint64
    spaces: uint64
    double: uint64
    triple: uint64


class Masks(NamedTuple):
    """Of all characters; `narrow` is white space of one byte, and `text` what is part of the text."""

    letters: uint64
    numbers: uint64
    spaces: uint64
    narrow: uint64
    double: uint64
    triple: uint64
    text: uint64


@compiled
def contraction_length(data: Bytes, index: int64, end: int64) -> int64:
    """The length of the contraction at an apostrophe, 0 if there is none."""
    if index + 1 < end:
        first = data[index + 1]
        if first == 0x73 or first == 0x74 or first == 0x6D or first == 0x64:  # s, t, m, d
            return 2
        if index + 2 < end:
            second = data[index + 2]
            if second == 0x65 and (first == 0x72 or first == 0x76):  # re, ve
                return 3
            if second == 0x6C and first == 0x6C:  # ll
                return 3
    return 0


@inlined
def range_mask(data: Bytes, base: int64, fold: uint8, low: uint8, width: uint8) -> uint64:
    """`byte_range_mask`, also where fewer than 64 bytes are left of the array."""
    if base + BLOCK <= data.size:
        return byte_range_mask(data, base, fold, low, width)
    mask = NONE
    for index in range(base, data.size):
        if np.uint8((data[index] | fold) - low) < width:
            mask |= ONE << (index - base)
    return mask


@compiled
def wide_masks(data: Bytes, base: int64, begin: int64, end: int64, wide: uint64, classes: Bytes) -> WideMasks:
    """Letters, numbers, white space and its first bytes of two and three, among the bytes that a mask says are wide."""
    letters = numbers = spaces = double = triple = NONE
    shift = trailing_zeros(wide)
    if shift == 0:
        # Back to the first byte of the character that the edge of the block cuts.
        while base + shift > begin and shift > -3 and data[base + shift] & 0xC0 == 0x80:
            shift -= 1
    while True:
        length = character_length(data[base + shift])
        character_class = np.uint64(classes[code_point(data, base + shift, end)])
        bits = (ONE << length) - ONE
        bits = bits << shift if shift >= 0 else bits >> -shift
        # Without a branch where letters and marks alternate, as in the scripts of India.
        letters |= bits & (NONE - (_LETTERS >> character_class & ONE))
        if character_class == NUMBER:
            numbers |= bits
        elif character_class == SPACE:
            spaces |= bits
            if shift >= 0:
                if length == 2:
                    double |= ONE << shift
                else:
                    triple |= ONE << shift
        shift += length
        if shift >= BLOCK or wide >> shift == NONE:
            return WideMasks(letters, numbers, spaces, double, triple)
        shift += trailing_zeros(wide >> shift)


@inlined
def class_masks(data: Bytes, base: int64, begin: int64, end: int64, classes: Bytes) -> Masks:
    """The masks of the 64 bytes from base on, of which those from end on are no part of the text."""
    if base >= end:
        return Masks(NONE, NONE, NONE, NONE, NONE, NONE, NONE)
    text = ALL if base + BLOCK <= end else (ONE << (end - base)) - ONE
    letters = range_mask(data, base, 0x20, 0x61, 26) & text
    numbers = range_mask(data, base, 0, 0x30, 10) & text
    narrow = (range_mask(data, base, 0, 0x20, 1) | range_mask(data, base, 0, 0x09, 5)) & text
    wide = range_mask(data, base, 0, 0x80, 0x80) & text
    if wide == NONE:
        return Masks(letters, numbers, narrow, narrow, NONE, NONE, text)
    of_wide = wide_masks(data, base, begin, end, wide, classes)
    letters, numbers, spaces = letters | of_wide.letters, numbers | of_wide.numbers, narrow | of_wide.spaces
    return Masks(letters, numbers, spaces, narrow, of_wide.double, of_wide.triple, text)


@compiled
def scan_gpt2(data: Bytes, begin: int64, end: int64, classes: Bytes, cuts: Int64Array) -> int64:
    """As `scanner.scan`, for the pattern `gpt2`."""
    count = 0
    room = cuts.size - BLOCK
    # The last bit of the block before: nothing precedes the first pretoken.
    after_letter = after_number = after_other = after_space = after_blank = NONE
    # What a contraction across the edge asks of the next block.
    forced = forbidden = NONE
    following = class_masks(data, begin, begin, end, classes)
    for base in range(begin, end, BLOCK):
        letters, numbers, spaces, narrow, double, triple, text = following
        following = class_masks(data, base + BLOCK, begin, end, classes)
        ahead = following.spaces | ~following.text
        spaces_or_end = spaces | ~text
        others = text & ~(letters | numbers | spaces)
        blanks = narrow & range_mask(data, base, 0, 0x20, 1)

        continued = letters & (letters << 1 | after_letter)
        continued |= numbers & (numbers << 1 | after_number)
        continued |= others & (others << 1 | after_other)
        begins = text & ~spaces & ~continued & ~(blanks << 1 | after_blank)
        run_begins = ~(spaces << 1 | after_space)
        begins |= narrow & (run_begins | ~(spaces_or_end >> 1 | ahead << 63))
        if double | triple:
            begins |= double & (run_begins | ~(spaces_or_end >> 2 | ahead << 62))
            begins |= triple & (run_begins | ~(spaces_or_end >> 3 | ahead << 61))

        apostrophes = begins & range_mask(data, base, 0, 0x27, 1)
        begins = begins & ~forbidden | forced
        forced = forbidden = NONE
        while apostrophes:
            bit = trailing_zeros(apostrophes)
            apostrophes &= apostrophes - ONE
            length = contraction_length(data, base + bit, end)
            if length:
                inside, after = bit + 1, bit + length
                if inside < BLOCK:
                    begins &= ~(ONE << inside)
                else:
                    forbidden = ONE << (inside - BLOCK)
                if after < BLOCK:
                    begins |= ONE << after
                else:
                    forced = ONE << (after - BLOCK)
        begins &= text
        if base == begin:
            begins &= ~ONE
        count += store_set_bits(cuts, count, begins, base)
        if count > room:
            return count
        after_letter, after_number, after_other = letters >> 63, numbers >> 63, others >> 63
        after_space, after_blank = spaces >> 63, blanks >> 63
    cuts[count] = end
    return count + 1
