"""Places to cut, against all patterns as `regex` runs them."""

import random
import re

import numpy as np

from shared.bpe import PATTERNS
from shared.bpe.kernels.boundaries import find_all, next_cut
from shared.bpe.kernels.classes import character_classes
from shared.bpe.patterns.named import split
from shared.bpe.training import Specials

PARTS = [
    *"aB'sSlLtTdDvVeEmM1/.!-_\t\r\x1c\u017f\u00bd\u3000\u00a0\u0301é字\u1e9b\u212b\u2028，\u02b0ǅ\u2019",
    *(" ", " ", "\n", "\n", "\n\n", "'s", "'ll", "'S", "/\n"),
]


def places(data: bytes) -> list[int]:
    """All places to cut."""
    array, specials = np.frombuffer(data, dtype=np.uint8), Specials()
    found, begin = [], 0
    while (place := next_cut(array, begin, len(data), character_classes(), specials.arrays)) < len(data):
        found.append(place)
        begin = place + 1
    return found


def test_no_piece_of_any_pattern_crosses_a_place_to_cut() -> None:
    draw = random.Random(7)
    seen = 0
    for _ in range(3_000):
        text = "".join(draw.choices(PARTS, k=draw.randrange(3, 14)))
        data = text.encode()
        for place in places(data):
            seen += 1
            left, right = data[:place].decode(), data[place:].decode()
            for name, pattern in PATTERNS.items():
                assert split(pattern, left) + split(pattern, right) == split(pattern, text), (name, text, place)
    assert seen > 2_000


def test_numbers_and_text_without_blanks_have_places_to_cut() -> None:
    assert places(b"123\n456\n789") == [3, 7]
    assert places("中文，中文。字".encode()) == [6, 15]
    assert places(b"--a's don't") == [5]
    assert places(b"123 456, x") == [3, 8]


def test_bytes_that_are_not_utf8_are_never_cut() -> None:
    assert places(b"abc\xff\xfe \n\xe4\xb8") == []


def test_all_places_of_a_special_token_are_those_that_python_finds() -> None:
    draw = random.Random(11)
    seen = 0
    for spelling in (b"<|end|>", b"aba", b"aa", b"a", b"\n\n\n", "é".encode()):
        special = Specials([spelling]).arrays
        for size in [*range(140), 1_000]:
            data = b"".join(draw.choices([b"a", b"b", b"\n", b"<", b"<|end|>", "é".encode()], k=size))
            room = np.empty(len(data) // len(spelling), np.int64)
            found = room[: find_all(np.frombuffer(data, np.uint8), special, room)].tolist()
            assert found == [match.start() for match in re.finditer(re.escape(spelling), data)], (spelling, data)
            seen += len(found)
    assert seen > 5_000
