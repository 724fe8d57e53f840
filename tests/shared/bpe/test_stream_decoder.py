import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bpe import StreamDecoder, Tokenizer, TokenizerError
from tests.growth import state_bytes


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


@pytest.mark.parametrize("token", [ord("7"), 0x80, 0xF0])
def test_B41_time_is_linear_and_state_bounded(small: Tokenizer, token: int) -> None:
    decoder = StreamDecoder(small)

    def state_after(count: int) -> int:
        assert sum(len(decoder.feed(token)) for _ in range(count)) >= count - 1
        return state_bytes(decoder, without=Tokenizer)

    # Time alone would not show it: copying 50,000 bytes for each of as many tokens takes a fraction of a second.
    bounded = state_after(100) + 100
    assert state_after(49_900) < bounded
