"""Bytes as text for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.console.token_text import token_text


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b" the", " the"),
        ("naïve 字".encode(), "naïve 字"),
        (b"\n\t\r\x00\x1b[2J\x7f", r"\n\t\r\x00\x1b[2J\x7f"),
        ("é".encode()[:1], r"\xc3"),
        ("é".encode()[1:], r"\xa9"),
        ("字".encode()[:2] + b"a", r"\xe5\xada"),
        (b"\xff\xed\xa0\x80", r"\xff\xed\xa0\x80"),  # never UTF-8, and a surrogate
        ("\x85\u00a0\u202e\ufeff".encode(), r"\u0085\u00a0\u202e\ufeff"),  # a line end, no blank, turns the direction
        ("\U000e0001".encode(), r"\U000e0001"),
        (rb"\xc3", r"\\xc3"),
    ],
)
def test_nothing_controls_the_terminal_and_no_byte_is_lost(data: bytes, shown: str) -> None:
    assert token_text(data) == shown


def _bytes(shown: str) -> bytes:
    """The inverse, by Python's own reading of escapes."""
    result, place = b"", 0
    while place < len(shown):
        if shown[place] != "\\":
            result, place = result + shown[place].encode(), place + 1
            continue
        length = {"x": 4, "u": 6, "U": 10}.get(shown[place + 1], 2)
        escape, place = shown[place : place + length], place + length
        character = escape.encode().decode("unicode_escape")
        result += bytes([ord(character)]) if escape[1] == "x" else character.encode()
    return result


@given(st.one_of(st.binary(), st.text().map(lambda text: text.encode(errors="replace"))))
def test_the_bytes_can_be_told_from_it(data: bytes) -> None:
    assert token_text(data).isprintable()
    assert _bytes(token_text(data)) == data
