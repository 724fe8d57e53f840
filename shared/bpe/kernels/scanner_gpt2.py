r"""The cuts of GPT-2's pattern, 64 bytes at a time.

    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

A block of 64 bytes becomes four masks, one bit a byte: letters, numbers, white space, and others. All bytes of a
character have its class. Then a piece begins

- at a letter, number or other character that neither continues a run of its class nor follows a blank, which the run
  takes with it;
- at white space that begins a run, or that ends a run of several before something else: `\s+(?!\S)` leaves it over.
  The end of the text counts as white space here. White space of several bytes looks ahead from its first one;
- after a contraction, and not inside it. Its apostrophe is one where a piece begins.

    bytes    W e ' r e _ _ h i !        _ is a blank
    letters  1 1 0 1 1 0 0 1 1 0
    spaces   0 0 0 0 0 1 1 0 0 0
    begins   1 0 1 0 0 1 1 0 0 1        without the contraction there would be one at r

White space needs the first bits of the next block, so masks are made one block ahead.
"""

import numpy as np

from shared.bpe.kernels import types
from shared.bpe.kernels.classes import CASELESS, NUMBER, SPACE, UPPER
from shared.bpe.kernels.compiling import compiled
from shared.bpe.kernels.intrinsics import BLOCK, byte_range_mask, trailing_zeros
from shared.bpe.kernels.types import BYTES, INT64S
from shared.bpe.kernels.utf8 import character_length, code_point

NONE = np.uint64(0)
ONE = np.uint64(1)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)

# letters, numbers, white space, first bytes of white space of one, two and three bytes, bytes of the text
_MASKS = types.UniTuple(types.uint64, 7)


@compiled(types.int64, BYTES, types.int64, types.int64)
def contraction_length(data, index, end):
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


@compiled(types.uint64, BYTES, types.int64, types.int64, types.uint8)
def byte_mask(data, base, end, byte):
    """Where one byte occurs among the 64 from base on."""
    if base + BLOCK <= end:
        return byte_range_mask(data, base, 0, byte, 1)
    mask = NONE
    for index in range(base, end):
        if data[index] == byte:
            mask |= ONE << (index - base)
    return mask


@compiled(_MASKS, BYTES, types.int64, types.int64, types.int64, BYTES)
def class_masks_by_character(data, base, begin, end, classes):
    """`class_masks` for any block: characters of several bytes, or the end of the text."""
    letters = numbers = spaces = narrow = double = triple = text = NONE
    index = base
    if base < end:
        # Back to the first byte of the character that the edge of the block cuts.
        while index > begin and index > base - 3 and data[index] & 0xC0 == 0x80:
            index -= 1
    block_end = min(base + BLOCK, end)
    while index < block_end:
        length = character_length(data[index])
        character_class = classes[code_point(data, index, end)]
        bits = (ONE << length) - ONE
        shift = index - base
        bits = bits << shift if shift >= 0 else bits >> -shift
        if UPPER <= character_class <= CASELESS:
            letters |= bits
        elif character_class == NUMBER:
            numbers |= bits
        elif character_class == SPACE:
            spaces |= bits
            if shift >= 0:
                first = ONE << shift
                if length == 1:
                    narrow |= first
                elif length == 2:
                    double |= first
                else:
                    triple |= first
        text |= bits
        index += length
    return letters, numbers, spaces, narrow, double, triple, text


@compiled(_MASKS, BYTES, types.int64, types.int64, types.int64, BYTES)
def class_masks(data, base, begin, end, classes):
    """The masks of the 64 bytes from base on, of which those from end on are no part of the text."""
    if base + BLOCK <= end and byte_range_mask(data, base, 0, 0x80, 0x80) == NONE:
        letters = byte_range_mask(data, base, 0x20, 0x61, 26)
        numbers = byte_range_mask(data, base, 0, 0x30, 10)
        spaces = byte_range_mask(data, base, 0, 0x20, 1) | byte_range_mask(data, base, 0, 0x09, 5)
        return letters, numbers, spaces, spaces, NONE, NONE, ALL
    return class_masks_by_character(data, base, begin, end, classes)


@compiled(types.int64, BYTES, types.int64, types.int64, BYTES, INT64S)
def scan_gpt2(data, begin, end, classes, cuts):
    """As `scanner.scan`, for the pattern `gpt2`."""
    count = 0
    room = cuts.size - BLOCK
    # The last bit of the block before: nothing precedes the first piece.
    after_letter = after_number = after_other = after_space = after_blank = NONE
    # What a contraction across the edge asks of the next block.
    forced = forbidden = NONE
    following = class_masks(data, begin, begin, end, classes)
    for base in range(begin, end, BLOCK):
        letters, numbers, spaces, narrow, double, triple, text = following
        following = class_masks(data, base + BLOCK, begin, end, classes)
        ahead = following[2] | ~following[6]
        spaces_or_end = spaces | ~text
        others = text & ~(letters | numbers | spaces)
        blanks = narrow & byte_mask(data, base, end, 0x20)

        continued = letters & (letters << 1 | after_letter)
        continued |= numbers & (numbers << 1 | after_number)
        continued |= others & (others << 1 | after_other)
        begins = text & ~spaces & ~continued & ~(blanks << 1 | after_blank)
        run_begins = ~(spaces << 1 | after_space)
        begins |= narrow & (run_begins | ~(spaces_or_end >> 1 | ahead << 63))
        if double | triple:
            begins |= double & (run_begins | ~(spaces_or_end >> 2 | ahead << 62))
            begins |= triple & (run_begins | ~(spaces_or_end >> 3 | ahead << 61))

        apostrophes = begins & byte_mask(data, base, end, 0x27)
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
        while begins:
            cuts[count] = base + trailing_zeros(begins)
            begins &= begins - ONE
            count += 1
        if count > room:
            return count
        after_letter, after_number, after_other = letters >> 63, numbers >> 63, others >> 63
        after_space, after_blank = spaces >> 63, blanks >> 63
    cuts[count] = end
    return count + 1
