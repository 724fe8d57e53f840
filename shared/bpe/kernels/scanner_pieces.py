"""Cutting UTF-8 between two characters that no piece of a SentencePiece vocabulary has side by side.

Merges never cross such a place: the token that would span it is a piece that has both. So what lies between two cuts is
merged as it is within the whole text, and is a pretoken, although SentencePiece knows none. A cut depends on the two
characters around it alone, and is looked up in a table of pairs of classes:

classes    of every code point. ASCII characters have classes of their own, those of no piece of several characters
           share ALONE, and others share one with their neighbors in Unicode
joins      1 at `left class * 256 + right class` where some piece has such characters side by side
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from shared.bpe.kernels.utf8 import character_length, code_point
from shared.kernels.compiling import compiled
from shared.kernels.types import Bytes, Int64Array, int64

_ASCII, _CODE_POINTS = 0x80, 0x110000
ALONE = _ASCII
_SHARED = 256 - ALONE - 1  # classes for characters beyond ASCII
_BLOCK_BITS = 7  # neighbors that share a class


@compiled
def scan_pieces(data: Bytes, begin: int64, end: int64, classes: Bytes, joins: Bytes, cuts: Int64Array) -> int64:
    """Fill `cuts` as `scanner.scan` does; returns their number."""
    count, room = 0, cuts.size - 1
    left = np.int64(classes[code_point(data, begin, end)])
    place = begin + character_length(data[begin])
    while place < end and count < room:
        here = np.int64(data[place])
        length = 1
        if here >= _ASCII:
            here = np.int64(classes[code_point(data, place, end)])
            length = character_length(data[place])
        # Written always, and kept where there is a cut: a branch would often be predicted wrongly.
        cuts[count] = place
        count += 1 - np.int64(joins[(left << 8) | here])
        left = here
        place += length
    if place >= end:
        cuts[count] = end
        count += 1
    return count


def adjacency(pieces: Iterable[str], *, space_begins: bool) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The classes of characters, and which of them join.

    Args:
        pieces: All pieces that merges give.
        space_begins: Whether every space begins a pretoken, whatever the pieces.
    """
    several = [piece for piece in pieces if len(piece) > 1]
    text = np.frombuffer("".join(several).encode("utf-32-le"), "<u4").astype(np.int64)
    is_last = np.zeros(len(text), np.bool_)
    is_last[np.cumsum([*map(len, several)], dtype=np.int64) - 1] = True
    used = np.unique(text)
    _, blocks = np.unique(used >> _BLOCK_BITS, return_inverse=True)
    classes = np.full(_CODE_POINTS, ALONE, np.uint8)
    classes[used] = ALONE + 1 + blocks % _SHARED
    classes[:_ASCII] = np.arange(_ASCII)
    of_text = classes[text]
    joins = np.zeros((256, 256), np.uint8)
    joins[of_text[:-1][~is_last[:-1]], of_text[1:][~is_last[:-1]]] = 1
    if space_begins:
        joins[:, ord(" ")] = 0
    return classes, joins.reshape(-1)
