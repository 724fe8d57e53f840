"""Unicode NFC in linear time, with the origin of every character."""

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

# `unicodedata.normalize` sorts marks by insertion, in quadratic time; longer runs are sorted before.
_LONG_RUN = 128
# The only characters that are not marks but become marks when decomposed (UAX 15, non-starter decompositions).
_PAIRS_OF_MARKS = {"\u0f73": "\u0f71\u0f72", "\u0f75": "\u0f71\u0f74", "\u0f81": "\u0f71\u0f80"}
# Characters that any character decomposes into, at most (UAX 15, table of expansion factors).
_LONGEST_DECOMPOSITION = 4
# No character from here on is a mark that can be reordered; looking at all of them takes a third of a second.
_BEHIND_MARKS = 0x20000
# Characters that are normalized while no other thread may run Python, and those before which a text may be cut: they
# compose with nothing before them. Of letters, only jamo do, and from Unicode 16 on one of Kirat Rai.
_BLOCK = 1 << 15
_CUT = re.compile("[\0-\x7f]|[^\\W\u1160-\u11ff\U00016d67]")


def nfc(text: str) -> str:
    """`unicodedata.normalize("NFC", text)`, which itself takes hours for some megabytes of unordered marks.

    It lets other threads run meanwhile, unless the text is a long run of marks.
    """
    return text if text.isascii() else "".join(map(_nfc_of_block, _blocks(text)))


def _blocks(text: str) -> Iterator[str]:
    """Parts of a text that normalize independently."""
    start = 0
    while start < len(text):
        cut = _CUT.search(text, start + _BLOCK)
        end = cut.start() if cut else len(text)
        yield text[start:end]
        start = end


def _nfc_of_block(text: str) -> str:
    if unicodedata.is_normalized("NFC", text):
        return text
    return unicodedata.normalize("NFC", _with_long_runs_in_order(text) if len(text) > _LONG_RUN else text)


def nfc_with_origins(text: str) -> tuple[str, list[tuple[int, int]]]:
    """NFC of a text, and for each of its characters the (start, end) of the characters that it came from.

    The text is split into clusters: the shortest parts that normalize independently.
    """
    normalized: list[str] = []
    origins: list[tuple[int, int]] = []
    start = 0
    while start < len(text):
        end = start + 1
        while end < len(text) and _joins(text, start, end):
            end += 1
        cluster = nfc(text[start:end])
        normalized.append(cluster)
        origins += [(start, end)] * len(cluster)
        start = end
    return "".join(normalized), origins


def _joins(text: str, start: int, end: int) -> bool:
    """Whether the cluster `text[start:end]` includes the character behind it."""
    character = text[end]
    if character.isascii():
        return False
    if unicodedata.combining(character) or character in _PAIRS_OF_MARKS:
        return True
    if end - start > _LONGEST_DECOMPOSITION:
        return False  # it ends in a mark that composes with nothing, and no character composes across such a mark
    cluster = text[start:end]
    apart = unicodedata.normalize("NFC", cluster) + unicodedata.normalize("NFC", character)
    return unicodedata.normalize("NFC", cluster + character) != apart


def _with_long_runs_in_order(text: str) -> str:
    """An equivalent text with long runs of marks in canonical order: a stable sort by combining class."""
    for pair, marks in _PAIRS_OF_MARKS.items():
        text = text.replace(pair, marks)
    characters = np.frombuffer(bytearray(text, "utf-32-le"), "<u4")
    classes = _combining_classes()[characters]
    runs = np.flatnonzero(np.diff(classes > 0, prepend=False, append=False)).reshape(-1, 2)
    for start, end in runs[runs[:, 1] - runs[:, 0] > _LONG_RUN].tolist():
        run = characters[start:end]
        run[:] = run[np.argsort(classes[start:end], kind="stable")]
    return characters.tobytes().decode("utf-32-le")


@cache
def _combining_classes() -> npt.NDArray[np.uint8]:
    """The canonical combining class of every character; 0 for all but marks that can be reordered."""
    classes = np.zeros(sys.maxunicode + 1, np.uint8)
    classes[:_BEHIND_MARKS] = np.fromiter(map(unicodedata.combining, map(chr, range(_BEHIND_MARKS))), np.uint8)
    return classes
