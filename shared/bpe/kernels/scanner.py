r"""Cutting UTF-8 into pretokens as the named patterns do, without a regular expression.

`scan(scanner, data, begin, end)` writes where pretokens end. Its caller goes on from the last cut:

    position = begin
    while position < end:
        count = scan(scanner, data, position, end)
        ...                                  # pretokens are data[position:cuts[0]], data[cuts[0]:cuts[1]], ...
        position = scanner.cuts[count - 1]

since a pretoken never depends on what precedes it. `end` is the end of a text: look-ahead stops there. The bytes must
be valid UTF-8; others are cut in some way, but nothing beyond them is read.
"""

from typing import NamedTuple

from shared.bpe.kernels.scanner_gpt2 import scan_gpt2
from shared.bpe.kernels.scanner_pieces import scan_pieces
from shared.bpe.kernels.scanner_words import scan_words
from shared.kernels.compiling import compiled
from shared.kernels.types import Bytes, Int64Array, int64

MIN_CUTS = 128  # the smallest array of cuts that a scan can fill

# What `scan` calls the named patterns.
PATTERN_IDS = {"gpt2": 0, "cl100k": 1, "o200k": 2, "llama3": 3, "qwen": 4}
# Instead of a pattern: cut wherever no piece of the vocabulary has both characters (see `scanner_pieces`).
PIECES = 5


class Scanner(NamedTuple):
    """What a scan needs besides the text.

    Attributes:
        pattern: A value of PATTERN_IDS, or PIECES.
        classes: `character_classes()`; for PIECES, those of `adjacency`.
        joins: For PIECES, those of `adjacency`; else empty.
        cuts: Room for MIN_CUTS or more, which each scan overwrites.
    """

    pattern: int64
    classes: Bytes
    joins: Bytes
    cuts: Int64Array


@compiled
def scan(scanner: Scanner, data: Bytes, begin: int64, end: int64) -> int64:
    """Fill `cuts` with the ends of the pretokens of `data[begin:end]`, as far as there is room; returns their number.

    Args:
        scanner: The pattern, and room for the cuts.
        data: UTF-8.
        begin: Where the first pretoken begins, before `end`.
        end: The end of the text. Once the last cut is `end`, the scan is complete.
    """
    pattern = scanner.pattern
    if pattern == 0:
        return scan_gpt2(data, begin, end, scanner.classes, scanner.cuts)
    if pattern == PIECES:
        return scan_pieces(data, begin, end, scanner.classes, scanner.joins, scanner.cuts)
    most_numbers = 1 if pattern == 4 else 3
    return scan_words(data, begin, end, scanner.classes, scanner.cuts, most_numbers, pattern == 1, pattern == 2)
