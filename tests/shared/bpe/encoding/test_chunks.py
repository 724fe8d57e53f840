import random
import tracemalloc
import unicodedata
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bpe import PATTERNS, Tokenizer, train_bpe
from shared.bpe.encoding.added_tokens import AddedTokenMatcher
from shared.bpe.encoding.chunks import Chunker
from shared.bpe.patterns.named import split
from shared.bpe.vocabulary import AddedToken

# Characters on which the patterns decide: every class that they name, and parts of contractions and special tokens.
ADVERSARIAL = "aB'sSlLtT\u017f1\u00bd  \n\n\r\t\u3000\u00a0./!\u0301é字\u1112\u1161\u1e9b\u0323\u212b\u0958<|e>\x1c"
ADDED = [
    AddedToken(0, "<|e|>"),
    AddedToken(1, "<|e|><|e"),
    AddedToken(2, "e|", lstrip=True),
    AddedToken(3, "s\n", rstrip=True),
    AddedToken(4, "a b"),
    AddedToken(5, "<a<"),
]

texts = st.lists(
    st.one_of(
        st.text(ADVERSARIAL, max_size=6),
        st.sampled_from([t.content for t in ADDED]),
        st.sampled_from(["don't ", " \n", "\na"]),
    ),
    max_size=14,
).map("".join)


def cut(text: str, pattern: str, matcher: AddedTokenMatcher, *, nfc: bool) -> list[str]:
    """The pieces and added tokens of a text, as the tokenizer sees them."""
    pieces = []
    for _, part, token in matcher.split(text):
        if token is not None:
            pieces.append(f"[{token.content}]")
        else:
            pieces += split(pattern, unicodedata.normalize("NFC", part) if nfc else part)
    return pieces


@pytest.mark.parametrize("nfc", [False, True])
@pytest.mark.parametrize("added", [[], ADDED], ids=["no added tokens", "added tokens"])
@settings(max_examples=100, deadline=None)
@given(text=texts, data=st.data())
def test_every_cut_is_safe_whatever_follows(
    named_pattern: str, added: list[AddedToken], nfc: bool, text: str, data: st.DataObject
) -> None:
    pattern, matcher = PATTERNS[named_pattern], AddedTokenMatcher(added)
    whole = cut(text, pattern, matcher, nfc=nfc)
    seen = data.draw(st.integers(0, len(text)))
    place = Chunker(pattern, matcher, nfc=nfc).last_boundary(text[:seen])[0]
    apart = cut(text[:place], pattern, matcher, nfc=nfc) + cut(text[place:], pattern, matcher, nfc=nfc)
    assert apart == whole


@settings(max_examples=100, deadline=None)
@given(text=texts, seed=st.integers(0, 1000), chunk_characters=st.integers(1, 12))
def test_blocks_give_the_pieces_of_the_whole(named_pattern: str, text: str, seed: int, chunk_characters: int) -> None:
    pattern, matcher = PATTERNS[named_pattern], AddedTokenMatcher(ADDED)
    places = sorted(random.Random(seed).choices(range(len(text) + 1), k=5))
    chunks = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    blocks = list(Chunker(pattern, matcher, chunk_characters=chunk_characters).chunks(chunks))
    assert "".join(blocks) == text
    assert [piece for block in blocks for piece in cut(block, pattern, matcher, nfc=False)] == cut(
        text, pattern, matcher, nfc=False
    )


@pytest.mark.parametrize("pattern", [r"(?<=a) b|.", r"[\s\S]+"])
def test_custom_pattern_is_cut_at_added_tokens_only(pattern: str) -> None:
    blocks = list(
        Chunker(pattern, AddedTokenMatcher(ADDED), chunk_characters=1).chunks(["a b c a", " b<|e|>a c", " d"])
    )
    assert "".join(blocks) == "a b c a b<|e|>a c d"
    assert blocks[-1] == "a c d"


@pytest.mark.parametrize("size", [1, 3, 10**6])
def test_B24_encode_iterable_equals_encode(gpt2: Tokenizer, sample: str, size: int) -> None:
    text = (sample + "<|endoftext|><|endoftext" + sample) * 20
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    ids = list(gpt2.encode_iterable(chunks, allowed_special="all"))
    assert ids == gpt2.encode(text, allowed_special="all")
    assert list(gpt2.encode_iterable(text.splitlines(keepends=True))) == gpt2.encode(text)


def test_B24_encode_iterable_is_lazy_and_bounded() -> None:
    tokenizer = train_bpe([], 257, special_tokens=["<|e|>"]).tokenizer

    def endless():
        while True:
            yield "a line without an end, "

    tokenizer.encode("kernels are loaded before memory is measured")
    tracemalloc.start()
    try:
        ids = islice(tokenizer.encode_iterable(endless()), 300_000)
        assert sum(1 for _ in ids) == 300_000
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
