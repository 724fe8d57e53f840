"""The pretokens of the patterns since GPT-2's (see `scanner_words`) in a block of 64 ASCII bytes, by masks.

Bit 0 of every mask is the byte where the next pretoken begins, so runs are counted, not walked. After the block the
masks are zero: a pretoken that seems to end there may go on, and is left to the scan character by character.
"""

import numpy as np

from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import BLOCK, byte_range_mask, leading_zeros, trailing_zeros
from shared.kernels.types import BYTES, INT64S, int64, uint64

_NONE = np.uint64(0)
_ONE = np.uint64(1)
_APOSTROPHE = 0x27


@compiled(int64, uint64, inline=True)
def ones(mask):
    """How many low bits of a mask are set before the first that is not."""
    return trailing_zeros(~mask) if ~mask != _NONE else BLOCK


@compiled(int64, BYTES, int64)
def contraction_length(data, index):
    """The length of the contraction at an index, in any case; 0 if there is none. Two bytes follow the index."""
    if data[index] != _APOSTROPHE:
        return 0
    first, second = data[index + 1] | 0x20, data[index + 2] | 0x20
    if first == 0x73 or first == 0x74 or first == 0x6D or first == 0x64:  # s, t, m, d
        return 2
    if (second == 0x65 and (first == 0x72 or first == 0x76)) or (second == 0x6C and first == 0x6C):  # re, ve, ll
        return 3
    return 0


@compiled(int64, uint64, uint64, inline=True)
def cased_length(upper, lower):
    """The length of a word that is cut by case: upper case, then lower case."""
    count = ones(upper)
    return count + ones(lower >> np.uint64(count)) if count < BLOCK else count


@compiled(int64, uint64, uint64, int64)
def space_length(spaces, newlines, room):
    """The length of a pretoken of white space, to its last newline or all but its last; `room` if it is uncertain."""
    run = ones(spaces)
    if run >= room:
        return room
    newlines &= (_ONE << np.uint64(run)) - _ONE
    if newlines:
        return BLOCK - leading_zeros(newlines)
    return max(run - 1, 1)


@compiled(int64, uint64, uint64, uint64, int64)
def others_length(blanks, others, trailers, room):
    """The length of a blank, if there is one, others and what trails them; 0 if there are no others."""
    skipped = blanks & (others >> _ONE) & _ONE
    length = np.int64(skipped) + ones(others >> skipped)
    if 0 < length < room:
        length += ones(trailers >> np.uint64(length))
    return length


@compiled(
    int64,
    *(BYTES, int64, int64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, int64, types.boolean),
    inline=True,
)
def pretoken_length(
    data, base, room, upper, lower, numbers, blanks, spaces, newlines, trailers, others, most_numbers, by_case
):
    """The length of the pretoken that begins at `base`; `room` or more if the block does not show it."""
    letters = upper | lower
    if numbers & _ONE:
        return min(ones(numbers), most_numbers)
    if others & _ONE and not by_case:
        length = contraction_length(data, base)
        if length:
            return length
    # One character that is neither letter, number nor newline may precede a word.
    before = np.uint64(1) & ~(letters | newlines)
    if letters >> before & _ONE:
        if not by_case:
            return np.int64(before) + ones(letters >> before)
        length = np.int64(before) + cased_length(upper >> before, lower >> before)
        return length + contraction_length(data, base + length) if length < room - 2 else room
    length = others_length(blanks, others, trailers, room)
    return length or space_length(spaces, newlines, room)


@compiled(int64, BYTES, int64, INT64S, int64, int64, types.boolean)
def scan_ascii(data, base, cuts, count, most_numbers, by_case):
    """Write the ends of the pretokens that lie in `data[base:base + BLOCK]` to `cuts[count:]`, and return their number.

    Args:
        data: All ASCII in the block.
        base: Where the first pretoken begins.
        cuts: Room for BLOCK more.
        count: Entries of `cuts` that are taken.
        most_numbers: How many numbers a pretoken may have.
        by_case: Whether the pattern is o200k, which cuts words by case and takes contractions with them.
    """
    upper = byte_range_mask(data, base, 0, 0x41, 26)
    lower = byte_range_mask(data, base, 0, 0x61, 26)
    numbers = byte_range_mask(data, base, 0, 0x30, 10)
    blanks = byte_range_mask(data, base, 0, 0x20, 1)
    spaces = byte_range_mask(data, base, 0, 0x09, 5) | blanks
    newlines = byte_range_mask(data, base, 0, 0x0A, 1) | byte_range_mask(data, base, 0, 0x0D, 1)
    trailers = newlines | byte_range_mask(data, base, 0, 0x2F, 1) if by_case else newlines
    others = ~(upper | lower | numbers | spaces)
    room = BLOCK
    while room > 3:  # a contraction has up to three bytes
        length = pretoken_length(
            data, base, room, upper, lower, numbers, blanks, spaces, newlines, trailers, others, most_numbers, by_case
        )
        if length >= room:
            break
        base += length
        room -= length
        cuts[count] = base
        count += 1
        step = np.uint64(length)
        upper, lower, numbers, blanks = upper >> step, lower >> step, numbers >> step, blanks >> step
        spaces, newlines, trailers, others = spaces >> step, newlines >> step, trailers >> step, others >> step
    return count
