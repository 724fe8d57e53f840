import sys
import time
import unicodedata
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bpe.encoding import normalization
from shared.bpe.encoding.normalization import nfc, nfc_with_origins

# Marks of several classes, jamo, singletons, exclusions, and letters that compose with a following letter.
COMPOSING = (
    "aeA\u0301\u0323\u0307\u0338\u1100\u1161\u11a8\uac00\u212b"
    "\u0958\u0915\u093c\u09c7\u09be\u1e9b\u0f71\u0f72\U000110a5\U000110ba<"
)


@settings(max_examples=1000, deadline=None)
@given(st.one_of(st.text(COMPOSING), st.text()))
def test_equals_unicodedata_and_every_origin_normalizes_to_its_characters(text: str) -> None:
    normalized, origins = nfc_with_origins(text)
    assert normalized == unicodedata.normalize("NFC", text)
    assert len(origins) == len(normalized)
    for start, end in set(origins):
        characters = [c for c, origin in zip(normalized, origins, strict=True) if origin == (start, end)]
        assert "".join(characters) == unicodedata.normalize("NFC", text[start:end])
    covered = sorted(set(origins))
    assert [start for start, _ in covered] == [0, *(end for _, end in covered)][: len(covered)]


MARKS = "".join(map(chr, filter(lambda code: unicodedata.combining(chr(code)), range(0x11000))))
NOT_MARKS = "a<\u00e9\u1100\u1161\u09be\u0915\u0f40\u1ebf"  # that compose, decompose, or do neither
runs = st.lists(
    st.tuples(st.sampled_from(MARKS + "\u0f73\u0f75\u0f81\u0344\u0340" + NOT_MARKS), st.integers(1, 90)), max_size=12
)


@pytest.mark.case("D29")
@given(runs)
def test_long_runs_of_marks_give_what_unicodedata_gives(parts: list[tuple[str, int]]) -> None:
    """Which is slow there, and right."""
    text = "".join(character * count for character, count in parts)
    expected = unicodedata.normalize("NFC", text)
    assert nfc(text) == expected
    normalized, origins = nfc_with_origins(text)
    assert normalized == expected
    assert len(origins) == len(normalized)
    for start, end in set(origins):
        characters = [c for c, origin in zip(normalized, origins, strict=True) if origin == (start, end)]
        assert "".join(characters) == unicodedata.normalize("NFC", text[start:end])


@settings(max_examples=500)
@given(st.one_of(st.text(COMPOSING + "\u304b\u3099\u1112", max_size=40), st.text(max_size=40)))
def test_a_long_text_is_normalized_in_parts(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalization, "_BLOCK", 2)
        assert nfc(text) == unicodedata.normalize("NFC", text)


@pytest.mark.case("D29")
@given(st.text(st.sampled_from(MARKS), min_size=130, max_size=200))
def test_one_run_of_many_marks(marks: str) -> None:
    assert nfc("a" + marks + "b") == unicodedata.normalize("NFC", "a" + marks + "b")


@pytest.mark.case("D29")
def test_what_is_taken_for_granted_of_unicode() -> None:
    """Of the version that this Python has."""
    marks = {}
    for code in range(sys.maxunicode + 1):
        decomposed = unicodedata.normalize("NFD", chr(code))
        assert len(decomposed) <= normalization._LONGEST_DECOMPOSITION
        if code >= normalization._END:
            assert decomposed == chr(code)
        if unicodedata.combining(chr(code)):
            assert code < normalization._END
            # A mark decomposes into marks of its own class, so that it may be decomposed before it is ordered.
            assert {unicodedata.combining(mark) for mark in decomposed} == {unicodedata.combining(chr(code))}
        if unicodedata.combining(decomposed[0]) and decomposed != chr(code):
            marks[chr(code)] = decomposed
    assert marks == normalization._DECOMPOSED_MARKS


@pytest.mark.case("D29")
def test_eight_mebibytes_of_marks_take_seconds() -> None:
    """Hours before: the square of 80,000 marks took 8.5 s."""
    text = "a" + "\u0301" * (1 << 21) + "\u0316" * (1 << 21)
    begin = time.process_time()
    assert nfc(text) == "\u00e1" + "\u0316" * (1 << 21) + "\u0301" * ((1 << 21) - 1)
    assert time.process_time() - begin < 20


@pytest.mark.case("D29")
@pytest.mark.parametrize(
    "unit", ["e\u0301 ", "\u2203\u0338", "\u304b\u3099", "\U0001d15e", "\xa0", "a" + "\u0301\u0323" * 60, "\u0301"]
)
def test_long_text_is_not_normalized_in_one_call(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GIL is held for the whole call, so one long call would block the event loop of a service."""
    lengths = []

    def normalize(form: Literal["NFC"], text: str) -> str:
        lengths.append(len(text))
        return normalize_text(form, text)

    normalize_text = unicodedata.normalize
    monkeypatch.setattr(unicodedata, "normalize", normalize)
    text = unit * (1_000_000 // len(unit))
    assert nfc(text) == normalize_text("NFC", text)
    assert max(lengths, default=0) <= 2 * normalization._BLOCK
