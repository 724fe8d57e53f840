"""Validation against CPython's decoder."""

import random

import numpy as np
import pytest

from shared.bpe.kernels.utf8 import code_point, first_invalid


def python_first_invalid(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return -1


@pytest.mark.extended
def test_every_character_is_read() -> None:
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    data = np.frombuffer("".join(map(chr, points)).encode(), dtype=np.uint8)
    index = 0
    for point in points[::7]:
        index = len("".join(map(chr, [point])).encode())
        assert code_point(np.frombuffer(chr(point).encode(), np.uint8), 0, index) == point
    assert first_invalid(data, 0, len(data)) == -1


def test_every_short_sequence_is_judged_as_python_does() -> None:
    edges = (
        0x00,
        0x41,
        0x7F,
        0x80,
        0x8F,
        0x90,
        0x9F,
        0xA0,
        0xBF,
        0xC0,
        0xC1,
        0xC2,
        0xDF,
        0xE0,
        0xE1,
        0xEC,
        0xED,
        0xEE,
        0xEF,
    )
    edges += (0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF8, 0xFF)
    generator = random.Random(3)
    for _ in range(60_000):
        text = b"a" * generator.choice((0, 0, 1, 60, 61, 62, 63, 64, 100)) + bytes(
            generator.choices(edges, k=generator.randrange(1, 6))
        )
        text += b"b" * generator.choice((0, 0, 1, 64))
        assert first_invalid(np.frombuffer(text, np.uint8), 0, len(text)) == python_first_invalid(text), text
