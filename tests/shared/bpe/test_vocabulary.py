from dataclasses import replace

import pytest

from shared.bpe import PATTERNS, Tokenizer, TokenizerError
from shared.bpe.vocabulary import MAX_ID, AddedToken, Vocabulary

BASE = Vocabulary(
    tokens={**{byte: bytes([byte]) for byte in range(256)}, 256: b"ab", 257: b"abc"},
    merges=((97, 98), (256, 99)),
    added=(AddedToken(258, "<s>"),),
    pattern=PATTERNS["gpt2"],
)


@pytest.mark.parametrize(
    "change",
    [
        {"pattern": PATTERNS["qwen"]},
        {"nfc": True},
        {"prefix_space": True},
        {"ignore_merges": True},
        {"merges": ((97, 98),)},
        {"tokens": {**BASE.tokens, 260: b"xy"}},
        {"added": (AddedToken(259, "<s>"),)},
        {"added": (AddedToken(258, "<t>"),)},
        {"added": (AddedToken(258, "<s>", special=False),)},
        {"added": (AddedToken(258, "<s>", lstrip=True),)},
        {"added": (AddedToken(258, "<s>", rstrip=True),)},
    ],
)
def test_fingerprint_changes_with_whatever_decides_ids(change: dict) -> None:
    assert replace(BASE, **change).fingerprint != BASE.fingerprint


@pytest.mark.parametrize(
    ("change", "alters"),
    [
        ({}, False),
        ({"nfc": True}, True),
        ({"prefix_space": True}, True),
        ({"added": (AddedToken(258, "<s>", special=False),)}, False),
        ({"added": (AddedToken(258, "<s>", special=False, lstrip=True),)}, True),
        ({"added": (AddedToken(258, "<s>", special=False, rstrip=True),)}, True),
        ({"added": (AddedToken(258, "<s>", lstrip=True, rstrip=True),)}, False),
    ],
)
def test_what_alters_a_text_in_which_nothing_is_special(change: dict, alters: bool) -> None:
    vocabulary = replace(BASE, **change)
    tokenizer, text = Tokenizer(vocabulary), "u\u0308 <s> x"
    assert vocabulary.alters_text == alters
    assert (tokenizer.decode(tokenizer.encode(text)) != text) == alters
    if any(token.special and token.lstrip for token in vocabulary.added):
        assert tokenizer.decode(tokenizer.encode(text, allowed_special="all")) == "u\u0308<s>x"


@pytest.mark.parametrize(
    "change", [{"eos": "<s>", "bos": "<s>"}, {"added": (AddedToken(258, "<s>", normalized=True),)}]
)
def test_fingerprint_is_that_of_the_ids_alone(change: dict) -> None:
    assert replace(BASE, **change).fingerprint == BASE.fingerprint


def test_an_added_token_may_have_the_bytes_of_an_ordinary_one() -> None:
    # As the runs of spaces that Phi-2 adds to GPT-2's vocabulary; only their printable forms must differ.
    vocabulary = replace(BASE, tokens={**BASE.tokens, 260: b"  "}, added=(AddedToken(261, "  "),))
    assert vocabulary.ids[b"  "] == 260
    with pytest.raises(TokenizerError, match="the spelling of an ordinary token"):
        replace(vocabulary, added=(AddedToken(261, "ĠĠ"),))


@pytest.mark.case("D34")
def test_fingerprint_tells_the_order_in_which_added_tokens_are_looked_for() -> None:
    added = (AddedToken(258, "xy"), AddedToken(259, "yz", normalized=True))
    swapped = (replace(added[0], normalized=True), replace(added[1], normalized=False))
    assert replace(BASE, added=added).fingerprint != replace(BASE, added=swapped).fingerprint


@pytest.mark.case("D34")
def test_an_ordinary_token_may_be_an_added_one_too() -> None:
    both = replace(BASE, added=(AddedToken(256, "ab"), AddedToken(97, "a")))
    assert both.fingerprint != BASE.fingerprint
    tokens = {**BASE.tokens, 258: b"  "}
    # One id would stand for two texts: the printable form of a byte or a space, and the characters of this form.
    for token in (AddedToken(0xE9, "é"), AddedToken(32, "Ġ"), AddedToken(258, "  "), AddedToken(97, "<s>")):
        with pytest.raises(TokenizerError, match="the spelling of an ordinary token"):
            replace(BASE, tokens=tokens, added=(token,))


def test_the_highest_id_is_encoded_and_a_higher_one_refused() -> None:
    tokens = {**BASE.tokens, MAX_ID: b"xy", MAX_ID - 1: b"xyz"}
    merges = ((120, 121), (MAX_ID, 122))
    vocabulary = replace(BASE, tokens=tokens, merges=merges, added=())
    assert Tokenizer(vocabulary).encode("xyxyz") == [MAX_ID, MAX_ID - 1]
    for change in ({"tokens": {**tokens, MAX_ID + 1: b"q "}}, {"added": (AddedToken(10**12, "<s>"),)}):
        with pytest.raises(TokenizerError, match=f"ids up to {MAX_ID}"):
            replace(vocabulary, **change)


@pytest.mark.case("D34")
def test_missing_bytes_are_those_that_a_text_may_have() -> None:
    in_texts = set("".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)])).encode())
    assert set(replace(BASE, tokens={97: b"a"}, merges=(), added=()).missing_bytes) == in_texts - {97}
    assert BASE.missing_bytes == b""


def test_fingerprint_never_changes() -> None:
    # Token files and checkpoints carry it: a change here would part them from their tokenizers.
    assert BASE.fingerprint == "6c94bde40411f484744d5ff699e551f206e3a58cce321a2e4f6651f8cf16b2c1"
