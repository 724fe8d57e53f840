r"""Cutting UTF-8 into pretokens as the named patterns do, without a regular expression.

`scan(pattern, data, begin, end, classes, cuts)` writes where pretokens end. Its caller goes on from the last cut:

    position = begin
    while position < end:
        count = scan(pattern, data, position, end, classes, cuts)
        ...                                  # pretokens are data[position:cuts[0]], data[cuts[0]:cuts[1]], ...
        position = cuts[count - 1]

since a pretoken never depends on what precedes it. `end` is the end of a text: look-ahead stops there. The bytes must
be valid UTF-8; others are cut in some way, but nothing beyond them is read.
"""

from shared.bpe.kernels.scanner_gpt2 import scan_gpt2
from shared.bpe.kernels.scanner_words import scan_words
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.types import BYTES, INT64S

MIN_CUTS = 128  # the smallest array of cuts that a scan can fill

# What `scan` calls the named patterns.
PATTERN_IDS = {"gpt2": 0, "cl100k": 1, "o200k": 2, "llama3": 3, "qwen": 4}


@compiled(types.int64, types.int64, BYTES, types.int64, types.int64, BYTES, INT64S)
def scan(pattern, data, begin, end, classes, cuts):
    """Fill `cuts` with the ends of the pretokens of `data[begin:end]`, as far as there is room; returns their number.

    Args:
        pattern: A value of PATTERN_IDS.
        data: UTF-8.
        begin: Where the first pretoken begins, before `end`.
        end: The end of the text. Once the last cut is `end`, the scan is complete.
        classes: `character_classes()`.
        cuts: Room for MIN_CUTS or more.
    """
    if pattern == 0:
        return scan_gpt2(data, begin, end, classes, cuts)
    most_numbers = 1 if pattern == 4 else 3
    return scan_words(data, begin, end, classes, cuts, most_numbers, pattern == 1, pattern == 2)
