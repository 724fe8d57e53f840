import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bpe import StreamDecoder, Tokenizer, TokenizerError


def feed(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    decoder = StreamDecoder(tokenizer, **options)
    return [*map(decoder.feed, ids), decoder.finish()]


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(0, 399), st.integers(0x80, 0xFF)), max_size=30), st.booleans())
def test_parts_joined_are_the_whole(small: Tokenizer, ids: list[int], skip: bool) -> None:
    assert "".join(feed(small, ids, skip_special_tokens=skip)) == small.decode(ids, skip_special_tokens=skip)


def test_characters_are_never_cut_and_never_late(small: Tokenizer) -> None:
    data = list("a\U0001f600é".encode())
    assert feed(small, data) == ["a", "", "", "", "\U0001f600", "", "é", ""]


def test_an_incomplete_character_is_replaced_at_the_end_only(small: Tokenizer) -> None:
    assert feed(small, list(b"\xf0\x9f")) == ["", "", "\ufffd"]


def test_ids_are_checked(small: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="400"):
        StreamDecoder(small).feed(400)


def test_B41_time_is_linear_and_state_bounded(small: Tokenizer) -> None:
    for token in (ord("7"), 0x80, 0xF0):
        decoder = StreamDecoder(small)
        start = time.process_time()
        parts = [decoder.feed(token) for _ in range(50_000)]
        # A decoder that looks at all earlier tokens again would take minutes.
        assert time.process_time() - start < 5
        assert len("".join(parts)) >= 49_999
