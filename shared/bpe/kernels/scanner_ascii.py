"""The pretokens of the patterns since GPT-2's (see `scanner_words`) in a block of 64 ASCII bytes, by masks.

Bit 0 of every mask is the byte where the next pretoken begins, so runs are counted, not walked. After the block the
masks are zero: a pretoken that seems to end there may go on, and is left to the scan character by character.
"""

from typing import NamedTuple

import numpy as np

from shared.kernels.compiling import compiled, inlined
from shared.kernels.intrinsics import BLOCK, byte_range_mask, leading_zeros, trailing_zeros
from shared.kernels.types import Bytes, Int64Array, boolean, int64, uint64

_NONE = np.uint64(0)
_ONE = np.uint64(1)
_APOSTROPHE = 0x27


class Masks(NamedTuple):
    """Which bytes of a block are of a class; `blanks` and `newlines` are white space too, `trailers` may end others."""

    upper: uint64
    lower: uint64
    numbers: uint64
    blanks: uint64
    spaces: uint64
    newlines: uint64
    trailers: uint64
    others: uint64


@inlined
def masks_of(data: Bytes, base: int64, by_case: boolean) -> Masks:
    """The masks of the block at `base`."""
    upper = byte_range_mask(data, base, 0, 0x41, 26)
    lower = byte_range_mask(data, base, 0, 0x61, 26)
    numbers = byte_range_mask(data, base, 0, 0x30, 10)
    blanks = byte_range_mask(data, base, 0, 0x20, 1)
    spaces = byte_range_mask(data, base, 0, 0x09, 5) | blanks
    newlines = byte_range_mask(data, base, 0, 0x0A, 1) | byte_range_mask(data, base, 0, 0x0D, 1)
    trailers = newlines | byte_range_mask(data, base, 0, 0x2F, 1) if by_case else newlines
    return Masks(upper, lower, numbers, blanks, spaces, newlines, trailers, ~(upper | lower | numbers | spaces))


@inlined
def shifted(masks: Masks, length: int64) -> Masks:
    """The masks of what follows so many bytes."""
    step = np.uint64(length)
    return Masks(
        masks.upper >> step,
        masks.lower >> step,
        masks.numbers >> step,
        masks.blanks >> step,
        masks.spaces >> step,
        masks.newlines >> step,
        masks.trailers >> step,
        masks.others >> step,
    )


@inlined
def ones(mask: uint64) -> int64:
    """How many low bits of a mask are set before the first that is not."""
    return trailing_zeros(~mask) if ~mask != _NONE else BLOCK


@compiled
def contraction_length(data: Bytes, index: int64) -> int64:
    """The length of the contraction at an index, in any case; 0 if there is none. Two bytes follow the index."""
    if data[index] != _APOSTROPHE:
        return 0
    first, second = data[index + 1] | 0x20, data[index + 2] | 0x20
    if first == 0x73 or first == 0x74 or first == 0x6D or first == 0x64:  # s, t, m, d
        return 2
    if (second == 0x65 and (first == 0x72 or first == 0x76)) or (second == 0x6C and first == 0x6C):  # re, ve, ll
        return 3
    return 0


@inlined
def cased_length(upper: uint64, lower: uint64) -> int64:
    """The length of a word that is cut by case: upper case, then lower case."""
    count = ones(upper)
    return count + ones(lower >> np.uint64(count)) if count < BLOCK else count


@compiled
def space_length(spaces: uint64, newlines: uint64, room: int64) -> int64:
    """The length of a pretoken of white space, to its last newline or all but its last; `room` if it is uncertain."""
    run = ones(spaces)
    if run >= room:
        return room
    newlines &= (_ONE << np.uint64(run)) - _ONE
    if newlines:
        return BLOCK - leading_zeros(newlines)
    return max(run - 1, 1)


@compiled
def others_length(blanks: uint64, others: uint64, trailers: uint64, room: int64) -> int64:
    """The length of a blank, if there is one, others and what trails them; 0 if there are no others."""
    skipped = blanks & (others >> _ONE) & _ONE
    length = np.int64(skipped) + ones(others >> skipped)
    if 0 < length < room:
        length += ones(trailers >> np.uint64(length))
    return length


@inlined
def pretoken_length(
    data: Bytes, base: int64, room: int64, masks: Masks, most_numbers: int64, by_case: boolean
) -> int64:
    """The length of the pretoken that begins at `base`; `room` or more if the block does not show it."""
    letters = masks.upper | masks.lower
    if masks.numbers & _ONE:
        return min(ones(masks.numbers), most_numbers)
    if masks.others & _ONE and not by_case:
        length = contraction_length(data, base)
        if length:
            return length
    # One character that is neither letter, number nor newline may precede a word.
    before = _ONE & ~(letters | masks.newlines)
    if letters >> before & _ONE:
        if not by_case:
            return np.int64(before) + ones(letters >> before)
        length = np.int64(before) + cased_length(masks.upper >> before, masks.lower >> before)
        return length + contraction_length(data, base + length) if length < room - 2 else room
    length = others_length(masks.blanks, masks.others, masks.trailers, room)
    return length or space_length(masks.spaces, masks.newlines, room)


@compiled
def scan_ascii(
    data: Bytes, base: int64, cuts: Int64Array, count: int64, most_numbers: int64, by_case: boolean
) -> int64:
    """Write the ends of the pretokens that lie in `data[base:base + BLOCK]` to `cuts[count:]`, and return their number.

    Args:
        data: All ASCII in the block.
        base: Where the first pretoken begins.
        cuts: Room for BLOCK more.
        count: Entries of `cuts` that are taken.
        most_numbers: How many numbers a pretoken may have.
        by_case: Whether the pattern is o200k, which cuts words by case and takes contractions with them.
    """
    masks, room = masks_of(data, base, by_case), BLOCK
    while room > 3:  # a contraction has up to three bytes
        length = pretoken_length(data, base, room, masks, most_numbers, by_case)
        if length >= room:
            break
        base += length
        room -= length
        cuts[count] = base
        count += 1
        masks = shifted(masks, length)
    return count
