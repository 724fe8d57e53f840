import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bpe.normalization import nfc_with_origins

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
