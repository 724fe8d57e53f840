"""Unicode NFC in linear time, with the origin of every character."""

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

# `unicodedata.normalize` sorts marks by insertion, in quadratic time; longer runs are sorted here.
_LONG_RUN = 128
# The only characters that decompose into other marks; the last three are no marks themselves (UAX 15, non-starter
# decompositions).
_DECOMPOSED_MARKS = {
    "\u0340": "\u0300",
    "\u0341": "\u0301",
    "\u0343": "\u0313",
    "\u0344": "\u0308\u0301",
    "\u0f73": "\u0f71\u0f72",
    "\u0f75": "\u0f71\u0f74",
    "\u0f81": "\u0f71\u0f80",
}
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

    It lets other threads run meanwhile.
    """
    return text if text.isascii() else "".join(map(_nfc_of_block, _blocks(text)))


def _blocks(text: str) -> Iterator[str]:
    """Parts of a text that normalize independently."""
    start = 0
    for place in range(_BLOCK, len(text), _BLOCK):
        if cut := _CUT.search(text, place, place + _BLOCK):
            yield text[start : cut.start()]
            start = cut.start()
    yield text[start:]


def _nfc_of_block(text: str) -> str:
    if len(text) <= 2 * _BLOCK and unicodedata.is_normalized("NFC", text):
        return text
    return unicodedata.normalize("NFC", text) if len(text) <= _LONG_RUN else _nfc_with_long_runs(text)


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
    if unicodedata.combining(character) or character in _DECOMPOSED_MARKS:
        return True
    if end - start > _LONGEST_DECOMPOSITION:
        return False  # it ends in a mark that composes with nothing, and no character composes across such a mark
    cluster = text[start:end]
    apart = unicodedata.normalize("NFC", cluster) + unicodedata.normalize("NFC", character)
    return unicodedata.normalize("NFC", cluster + character) != apart


def _nfc_with_long_runs(text: str) -> str:
    for character, marks in _DECOMPOSED_MARKS.items():
        text = text.replace(character, marks)
    characters = _code_points(text)
    runs = np.flatnonzero(np.diff(_combining_classes()[characters] > 0, prepend=False, append=False)).reshape(-1, 2)
    parts, begin = [], 0
    # Of a long run some marks stay, and nothing composes across these.
    for start, end in runs[runs[:, 1] - runs[:, 0] > _LONG_RUN].tolist():
        parts.append(_nfc_before_long_run(text[begin:start], characters[start:end]))
        begin = end
    return "".join([*parts, unicodedata.normalize("NFC", text[begin:])])


def _nfc_before_long_run(text: str, run: npt.NDArray[np.uint32]) -> str:
    """NFC of a text with a long run of decomposed marks behind it.

    A mark behind one of its class that does not compose does not compose either (UAX 15, D115), so only the first of
    each class can.
    """
    marks = _in_canonical_order(run)
    classes = _combining_classes()[marks]
    ranks = np.arange(len(marks)) - np.searchsorted(classes, np.arange(256))[classes]
    first = ranks < _LONGEST_DECOMPOSITION
    composed = _code_points(unicodedata.normalize("NFC", text + _text(marks[first])))
    not_marks = np.flatnonzero(_combining_classes()[composed] == 0)
    end = not_marks[-1] + 1 if len(not_marks) else 0
    rest = _in_canonical_order(np.concatenate([composed[end:], marks[~first]]))
    return _text(composed[:end]) + _text(rest)


def _in_canonical_order(marks: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return marks[np.argsort(_combining_classes()[marks], kind="stable")]


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def _text(code_points: npt.NDArray[np.uint32]) -> str:
    return code_points.tobytes().decode("utf-32-le")


@cache
def _combining_classes() -> npt.NDArray[np.uint8]:
    """The canonical combining class of every character; 0 for all but marks that can be reordered."""
    classes = np.zeros(sys.maxunicode + 1, np.uint8)
    classes[:_BEHIND_MARKS] = np.fromiter(map(unicodedata.combining, map(chr, range(_BEHIND_MARKS))), np.uint8)
    return classes
