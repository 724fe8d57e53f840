"""Unicode NFC in linear time, with the origin of every character."""

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

# `unicodedata.normalize` uses insertion sort for runs of marks; longer runs are sorted here, in 0.1 ms each.
_LONG_RUN = 256
# The only characters that decompose into other marks; the last three have combining class 0 (UAX 15, non-starter
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
# No character from here on decomposes or can be reordered; looking at all of them takes half a second.
_END = 0x30000
# Characters normalized per call of `unicodedata`, which holds the GIL throughout; up to twice as many.
_BLOCK = 1 << 15


def nfc(text: str) -> str:
    """`unicodedata.normalize("NFC", text)`, which itself takes hours for some megabytes of unordered marks.

    Long text is normalized in blocks, so that other threads can take the GIL in between; text without a boundary (see
    `_boundary`), such as megabytes of jamo vowels, is one block.
    """
    return text if text.isascii() else "".join(map(_nfc_of_block, _blocks(text)))


def _blocks(text: str) -> Iterator[str]:
    """Parts of a text that normalize independently."""
    start = 0
    for place in range(_BLOCK, len(text), _BLOCK):
        if boundary := _boundary().search(text, place, place + _BLOCK):
            yield text[start : boundary.start()]
            start = boundary.start()
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
    # Some marks of a long run remain, and they block composition across it.
    for start, end in runs[runs[:, 1] - runs[:, 0] > _LONG_RUN].tolist():
        parts.append(_nfc_with_long_run(text[begin:start], characters[start:end]))
        begin = end
    return "".join([*parts, unicodedata.normalize("NFC", text[begin:])])


def _nfc_with_long_run(text: str, run: npt.NDArray[np.uint32]) -> str:
    """NFC of a text and of the long run of decomposed marks behind it.

    A mark behind one of its class that does not compose is blocked (Unicode Standard, 3.11, D115), and at most three
    compose with one character, so only the first few of each class can.
    """
    marks = _in_canonical_order(run)
    classes = _combining_classes()[marks]
    ranks = np.arange(len(marks)) - np.searchsorted(classes, np.arange(256))[classes]
    may_compose = ranks < _LONGEST_DECOMPOSITION
    composed = _code_points(unicodedata.normalize("NFC", text + _text(marks[may_compose])))
    not_marks = np.flatnonzero(_combining_classes()[composed] == 0)
    end = not_marks[-1] + 1 if len(not_marks) else 0
    rest = _in_canonical_order(np.concatenate([composed[end:], marks[~may_compose]]))
    return _text(composed[:end]) + _text(rest)


def _in_canonical_order(marks: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return marks[np.argsort(_combining_classes()[marks], kind="stable")]


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _text(code_points: npt.NDArray[np.uint32]) -> str:
    return code_points.tobytes().decode("utf-32-le", "surrogatepass")


@cache
def _combining_classes() -> npt.NDArray[np.uint8]:
    """The canonical combining class of every character; 0 for all but marks that can be reordered."""
    classes = np.zeros(sys.maxunicode + 1, np.uint8)
    classes[:_END] = np.fromiter(map(unicodedata.combining, map(chr, range(_END))), np.uint8)
    return classes


@cache
def _boundary() -> re.Pattern[str]:
    """Matches a character with a normalization boundary before it: it never composes with preceding text.

    All others are marks, vowel and trailing jamo, and second characters of canonical decompositions.
    """
    second = {*map(chr, (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)))}  # jamo compose by arithmetic
    for character in map(chr, range(_END)):
        parts = unicodedata.decomposition(character).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            second.add(chr(int(parts[1], 16)))
    firsts = ((character, unicodedata.normalize("NFD", character)[0]) for character in map(chr, range(_END)))
    others = [character for character, first in firsts if first in second or unicodedata.combining(first)]
    return re.compile(f"[^{re.escape(''.join(others))}]")
