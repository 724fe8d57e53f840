"""Reading characters out of valid UTF-8, and finding where bytes are not valid."""

import numpy as np

from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import BLOCK, byte_range_mask, leading_zeros
from shared.kernels.types import Bytes, boolean, int64, uint8

ZERO, ONE, TWO, THREE = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)


@compiled
def character_length(lead: uint8) -> int64:
    """Bytes of the character that a byte leads; 1 for a continuation byte, which no valid character begins with."""
    if lead < 0xC0:
        return 1
    if lead < 0xE0:
        return 2
    return 3 if lead < 0xF0 else 4


@compiled
def code_point(data: Bytes, index: int64, end: int64) -> int64:
    """The character at an index; 0 where it is cut off by the end or could not be one."""
    lead = np.int64(data[index])
    if lead < 0x80:
        return lead
    length = character_length(data[index])
    if index + length > end:
        return 0
    if length == 2:
        return (lead & 0x1F) << 6 | np.int64(data[index + 1] & 0x3F)
    if length == 3:
        return (lead & 0x0F) << 12 | np.int64(data[index + 1] & 0x3F) << 6 | np.int64(data[index + 2] & 0x3F)
    point = (
        (lead & 0x07) << 18
        | np.int64(data[index + 1] & 0x3F) << 12
        | np.int64(data[index + 2] & 0x3F) << 6
        | np.int64(data[index + 3] & 0x3F)
    )
    return point if point < 0x110000 else 0


@compiled
def is_valid_character(data: Bytes, index: int64, end: int64) -> boolean:
    """Whether a well-formed character, not a surrogate and not too long a spelling, lies at an index."""
    lead = data[index]
    length = character_length(lead)
    if length == 1:
        return lead < 0x80
    if lead < 0xC2 or lead > 0xF4 or index + length > end:
        return False
    for offset in range(1, length):
        if data[index + offset] & 0xC0 != 0x80:
            return False
    second = data[index + 1]
    if lead == 0xE0:
        return second >= 0xA0
    if lead == 0xED:
        return second < 0xA0
    if lead == 0xF0:
        return second >= 0x90
    if lead == 0xF4:
        return second < 0x90
    return True


@compiled
def well_formed_bytes(data: Bytes, index: int64) -> int64:
    """How many of the 64 bytes from index on are whole, well-formed characters; 0 if something is wrong with them."""
    if byte_range_mask(data, index, 0, 0x80, 0x80) == ZERO:
        return BLOCK
    continuations = byte_range_mask(data, index, 0, 0x80, 0x40)
    of_two = byte_range_mask(data, index, 0, 0xC2, 0x1E)
    of_three = byte_range_mask(data, index, 0, 0xE0, 0x10)
    of_four = byte_range_mask(data, index, 0, 0xF0, 0x05)
    leads = of_two | of_three | of_four
    wrong = (leads << ONE | (of_three | of_four) << TWO | of_four << THREE) ^ continuations
    wrong |= byte_range_mask(data, index, 0, 0xC0, 0x40) & ~leads
    # Spelled too long, surrogates, and beyond the last character: the second byte decides.
    wrong |= byte_range_mask(data, index, 0, 0xE0, 1) << ONE & byte_range_mask(data, index, 0, 0x80, 0x20)
    wrong |= byte_range_mask(data, index, 0, 0xED, 1) << ONE & byte_range_mask(data, index, 0, 0xA0, 0x20)
    wrong |= byte_range_mask(data, index, 0, 0xF0, 1) << ONE & byte_range_mask(data, index, 0, 0x80, 0x10)
    wrong |= byte_range_mask(data, index, 0, 0xF4, 1) << ONE & byte_range_mask(data, index, 0, 0x90, 0x30)
    length = BLOCK
    if of_two >> (BLOCK - 1) | of_three >> (BLOCK - 2) | of_four >> (BLOCK - 3):
        length = 63 - leading_zeros(leads)  # the edge cuts the last character
        wrong &= (TWO << length) - ONE
    return length if wrong == ZERO else 0


@compiled
def first_invalid(data: Bytes, begin: int64, end: int64) -> int64:
    """The first place in `data[begin:end]` where no well-formed character begins; -1 if the whole is valid UTF-8."""
    index = begin
    while index < end:
        if index + BLOCK <= end:
            length = well_formed_bytes(data, index)
            if length > 0:
                index += length
                continue
        block_end = min(index + BLOCK, end)
        while index < block_end:
            if not is_valid_character(data, index, end):
                return index
            index += character_length(data[index])
    return -1
