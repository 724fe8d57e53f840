r"""The cuts of the patterns since GPT-2's, pretoken by pretoken.

`cl100k`, `llama3` and `qwen` are one pattern with small differences, its alternatives in this order:

    (?i:'s|'t|'re|'ve|'m|'ll|'d)      a contraction
    [^\r\n\p{L}\p{N}]?\p{L}+          letters, with one character before them that is no letter, number or newline
    \p{N}{1,3}                        up to three numbers; one in qwen
     ?[^\s\p{L}\p{N}]+[\r\n]*         others, with a blank before and newlines after
    \s*[\r\n]+                        white space up to its last newline; in cl100k all of it at the end of the text
    \s+(?!\S) | \s+                   white space, of which the last is left to what follows

`o200k` takes contractions with the word before, slashes with newlines after others, and cuts letters by case: upper
case and then lower case, where letters without case and marks are both.
"""

import numpy as np

from shared.bpe.kernels.boundaries import is_letter
from shared.bpe.kernels.classes import CASELESS, LOWER, MARK, NUMBER, OTHER, SPACE, UPPER
from shared.bpe.kernels.scanner_ascii import scan_ascii
from shared.bpe.kernels.utf8 import character_length, code_point
from shared.kernels.compiling import compiled, inlined
from shared.kernels.intrinsics import BLOCK, byte_range_mask
from shared.kernels.types import Bytes, Int64Array, boolean, int64

NO_MATCH = -1
_NONE = np.uint64(0)

_LINE_FEED, _CARRIAGE_RETURN, _BLANK, _APOSTROPHE, _SLASH = 0x0A, 0x0D, 0x20, 0x27, 0x2F


@inlined
def class_at(data: Bytes, index: int64, end: int64, classes: Bytes) -> int64:
    """The class of the character at an index before the end."""
    byte = data[index]
    if byte < 0x80:
        return np.int64(classes[byte])
    return np.int64(classes[code_point(data, index, end)])


@inlined
def next_character(data: Bytes, index: int64, end: int64) -> int64:
    """Where the character after the one at an index begins."""
    return min(index + character_length(data[index]), end)


@compiled
def contraction_end(data: Bytes, index: int64, end: int64) -> int64:
    """Where the contraction at an apostrophe ends, in any case; NO_MATCH if there is none."""
    if index + 1 >= end:
        return NO_MATCH
    first = data[index + 1] | 0x20
    if first == 0x73 or first == 0x74 or first == 0x6D or first == 0x64:  # s, t, m, d
        return index + 2
    if index + 2 >= end:
        return NO_MATCH
    if data[index + 1] == 0xC5 and data[index + 2] == 0xBF:  # the long s, which is an s without case
        return index + 3
    second = data[index + 2] | 0x20
    if (second == 0x65 and (first == 0x72 or first == 0x76)) or (second == 0x6C and first == 0x6C):  # re, ve, ll
        return index + 3
    return NO_MATCH


@compiled
def letters_end(data: Bytes, index: int64, end: int64, classes: Bytes) -> int64:
    """Where a run of letters ends."""
    while index < end and is_letter(class_at(data, index, end, classes)):
        index = next_character(data, index, end)
    return index


@compiled
def cased_word_end(data: Bytes, index: int64, end: int64, classes: Bytes) -> int64:
    r"""Where `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` ends, or NO_MATCH."""
    both_end = NO_MATCH
    while index < end:
        character_class = class_at(data, index, end, classes)
        if character_class == LOWER:
            while index < end and MARK <= class_at(data, index, end, classes) <= CASELESS:
                if class_at(data, index, end, classes) == UPPER:
                    break
                index = next_character(data, index, end)
            return index
        if not MARK <= character_class <= CASELESS:
            break
        index = next_character(data, index, end)
        if character_class != UPPER:
            both_end = index
    # No lower case follows: the second part is the last character that could be of either.
    return both_end


@compiled
def upper_word_end(data: Bytes, index: int64, end: int64, classes: Bytes) -> int64:
    r"""Where `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+` ends, or NO_MATCH; after `cased_word_end` has not matched."""
    begin = index
    while index < end and class_at(data, index, end, classes) == UPPER:
        index = next_character(data, index, end)
    return index if index > begin else NO_MATCH


@compiled
def word_end_by_case(data: Bytes, index: int64, end: int64, classes: Bytes) -> int64:
    """Where the word of `o200k` at an index ends, contraction included, or NO_MATCH."""
    first = class_at(data, index, end, classes)
    may_precede = first != NUMBER and not is_letter(first)
    may_precede = may_precede and data[index] != _LINE_FEED and data[index] != _CARRIAGE_RETURN
    after = next_character(data, index, end)
    reached = NO_MATCH
    if may_precede:
        reached = cased_word_end(data, after, end, classes)
    if reached == NO_MATCH:
        reached = cased_word_end(data, index, end, classes)
    if reached == NO_MATCH and may_precede:
        reached = upper_word_end(data, after, end, classes)
    if reached == NO_MATCH:
        reached = upper_word_end(data, index, end, classes)
    if reached != NO_MATCH and reached < end and data[reached] == _APOSTROPHE:
        return max(reached, contraction_end(data, reached, end))
    return reached


@compiled
def word_end(data: Bytes, index: int64, end: int64, classes: Bytes) -> int64:
    """Where the contraction or the word of the other patterns at an index ends, or NO_MATCH."""
    first = class_at(data, index, end, classes)
    if is_letter(first):
        return letters_end(data, index, end, classes)
    byte = data[index]
    if byte == _APOSTROPHE:
        reached = contraction_end(data, index, end)
        if reached != NO_MATCH:
            return reached
    if first == NUMBER or byte == _LINE_FEED or byte == _CARRIAGE_RETURN:
        return NO_MATCH
    after = next_character(data, index, end)
    reached = letters_end(data, after, end, classes)
    return reached if reached > after else NO_MATCH


@compiled
def numbers_end(data: Bytes, index: int64, end: int64, classes: Bytes, most: int64) -> int64:
    """Where up to so many numbers end."""
    while most > 0 and index < end and class_at(data, index, end, classes) == NUMBER:
        index = next_character(data, index, end)
        most -= 1
    return index


@compiled
def others_end(data: Bytes, index: int64, end: int64, classes: Bytes, with_slashes: boolean) -> int64:
    """Where a blank, if there is one, others and the newlines after them end; NO_MATCH if there are no others."""
    begin = index + 1 if data[index] == _BLANK else index
    index = begin
    while index < end and OTHER <= class_at(data, index, end, classes) <= MARK:
        index = next_character(data, index, end)
    if index == begin:
        return NO_MATCH
    while index < end:
        byte = data[index]
        if byte != _LINE_FEED and byte != _CARRIAGE_RETURN and not (with_slashes and byte == _SLASH):
            break
        index += 1
    return index


@compiled
def space_end(data: Bytes, index: int64, end: int64, classes: Bytes, whole_at_end: boolean) -> int64:
    """Where the pretoken of white space at an index ends."""
    last, newline_end = index, NO_MATCH
    begin = index
    while index < end and class_at(data, index, end, classes) == SPACE:
        last = index
        index = next_character(data, index, end)
        if data[last] == _LINE_FEED or data[last] == _CARRIAGE_RETURN:
            newline_end = index
    if index == end and whole_at_end:
        return end
    if newline_end != NO_MATCH:
        return newline_end
    if index == end or last == begin:
        return index
    return last


@compiled
def scan_words(
    data: Bytes,
    begin: int64,
    end: int64,
    classes: Bytes,
    cuts: Int64Array,
    most_numbers: int64,
    whole_at_end: boolean,
    by_case: boolean,
) -> int64:
    """As `scanner.scan`, for the patterns described above: ASCII by the block, the rest character by character."""
    count = 0
    while begin < end and count + BLOCK <= cuts.size:
        if begin + BLOCK <= end and byte_range_mask(data, begin, 0, 0x80, 0x80) == _NONE:
            before = count
            count = scan_ascii(data, begin, cuts, count, most_numbers, by_case)
            if count > before:
                begin = cuts[count - 1]
                continue
        first = class_at(data, begin, end, classes)
        reached = NO_MATCH
        if first == NUMBER:
            reached = numbers_end(data, begin, end, classes, most_numbers)
        elif by_case:
            reached = word_end_by_case(data, begin, end, classes)
        else:
            reached = word_end(data, begin, end, classes)
        if reached == NO_MATCH:
            reached = others_end(data, begin, end, classes, by_case)
        if reached == NO_MATCH:
            reached = space_end(data, begin, end, classes, whole_at_end)
        cuts[count] = reached
        count += 1
        begin = reached
    return count
