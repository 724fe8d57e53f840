"""The bound by which a text is refused without being encoded."""

import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bpe import PATTERNS, Tokenizer, TokenizerError
from shared.bpe.vocabulary import AddedToken, Vocabulary

pytestmark = pytest.mark.case("D08")

# Texts of which NFC leaves the least: three characters of five or six bytes become one of two.
SHRINKING = ["\u03b9\u0308\u0301", "\u00fc\u0304", "u\u0308\u0304", "\u1112\u1161\u11ab", "\u212a", "\u212b", "\u1fef"]
LETTERS = ["a", "aaaa", "é", "日", "\U0001f600", " ", " " * 50, "<|s|>", "<|strip|>", *SHRINKING]


def tokenizer(*, nfc: bool, strips: bool) -> Tokenizer:
    """The bytes, tokens of up to four of them and of whole characters, and two control tokens."""
    pairs = [(ord("a"), ord("a")), (256, 256), (0xCE, 0x90), (0xC7, 0x96), (0xED, 0x95), (260, 0x9C)]
    tokens = {byte: bytes([byte]) for byte in range(256)}
    for left, right in pairs:
        tokens[len(tokens)] = tokens[left] + tokens[right]
    added = (AddedToken(len(tokens), "<|s|>"), AddedToken(len(tokens) + 1, "<|strip|>", lstrip=strips, rstrip=strips))
    return Tokenizer(Vocabulary(tokens=tokens, merges=tuple(pairs), added=added, pattern=PATTERNS["gpt2"], nfc=nfc))


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(LETTERS), st.characters(exclude_categories=["Cs"])), max_size=40),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), ["<|s|>"], "all"]),
)
def test_no_text_has_fewer(parts: list[str], nfc: bool, strips: bool, allowed: list[str]) -> None:
    subject, text = tokenizer(nfc=nfc, strips=strips), "".join(parts)
    fewest = subject.token_lower_bound(text, allowed_special=allowed)
    assert fewest <= len(subject.encode(text, allowed_special=allowed))


@pytest.mark.parametrize("nfc", [False, True])
def test_it_grows_with_the_text(nfc: bool) -> None:
    subject = tokenizer(nfc=nfc, strips=True)
    assert subject.max_token_bytes == len("<|strip|>")
    assert subject.token_lower_bound("") == 0
    assert subject.token_lower_bound("~" * 9000) == (667 if nfc else 1000)
    for white in (" ", "\n", "\u3000"):
        assert subject.token_lower_bound(white * 9000) == (667 if nfc else 1000)
        assert subject.token_lower_bound(white * 9000, allowed_special="all") == 0, "one token may strip it all"
        assert subject.token_lower_bound(("~" + white) * 9000, allowed_special="all") == (667 if nfc else 1000)
    with pytest.raises(TokenizerError, match="allowed_special names '<x>'"):
        subject.token_lower_bound("a", allowed_special=["<x>"])


def test_nfc_makes_two_bytes_of_three_characters_at_least() -> None:
    """Characters of a text are at most those of its NFD, which is that of its NFC: Unicode's annex 15."""
    ratios = [
        len(unicodedata.normalize("NFD", character)) / len(character.encode())
        for character in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(character) != "Cs" and unicodedata.is_normalized("NFC", character)
    ]
    assert max(ratios) == 3 / 2
