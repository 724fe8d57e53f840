import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.inference.engine import TokenEvent, TokenLogprobs
from services.inference.generation.detokenizer import Delta, Detokenizer
from services.inference.generation.stop_strings import StopStrings
from shared.bpe import StreamDecoder, Tokenizer
from tests.growth import state_bytes
from tests.services.conftest import character_places


def test_text_comes_in_whole_characters_and_logprobs_in_real_bytes(pieces_tokenizer: Tokenizer) -> None:  # B39
    detokenizer = Detokenizer(0, pieces_tokenizer, StopStrings([]), {}, 0)
    emoji = "\U0001f600".encode()
    logprobs = TokenLogprobs(-0.5, ((1, -0.5),))
    deltas = [detokenizer.feed(TokenEvent(1, 0, byte, logprobs)) for byte in emoji]
    assert deltas[:3] == [None, None, None]
    assert deltas[3] is not None
    assert (deltas[3].text, deltas[3].tokens) == ("\U0001f600", list(emoji))
    assert deltas[3].logprobs == [logprobs] * 4


def test_an_incomplete_character_at_the_end_is_one_replacement_character(pieces_tokenizer: Tokenizer) -> None:  # B37
    detokenizer = Detokenizer(0, pieces_tokenizer, StopStrings([]), {}, 0)
    assert detokenizer.feed(TokenEvent(1, 0, 0xF0)) is None
    delta = detokenizer.feed(TokenEvent(1, 0, 0x9F, finish_reason="length"))
    assert delta is not None
    assert (delta.text, delta.finish_reason) == ("\ufffd", "length")


def test_bytes_that_complete_a_character_of_the_prompt_are_replacements(pieces_tokenizer: Tokenizer) -> None:  # B42
    detokenizer = Detokenizer(0, pieces_tokenizer, StopStrings([]), {}, 0)  # the prompt ended in F0 9F
    deltas = [detokenizer.feed(TokenEvent(1, 0, token)) for token in (0x98, 0x80, ord("a"))]
    assert "".join(delta.text for delta in deltas if delta is not None) == "\ufffd\ufffda"


@pytest.mark.parametrize("token", [ord("7"), 0x80])
def test_text_is_linear_in_the_number_of_tokens(pieces_tokenizer: Tokenizer, token: int) -> None:  # B41
    detokenizer = Detokenizer(0, pieces_tokenizer, StopStrings(["stop"]), {}, 0)

    def state_after(count: int) -> int:
        for _ in range(count):
            detokenizer.feed(TokenEvent(1, 0, token))
        return state_bytes(detokenizer, without=Tokenizer)

    # Time alone would not show it: copying 50,000 bytes for each of as many tokens takes a fraction of a second.
    bounded = state_after(100) + 100
    assert state_after(49_900) < bounded


def slow_answer(
    tokenizer: Tokenizer, tokens: list[int], stops: list[str], min_tokens: int
) -> tuple[str, list[int], list[int], str | None]:
    """The specification: text, tokens, offsets and stop string of an answer that is looked at as a whole.

    The text that a token makes certain is what no byte after it can change.
    """
    parts = [tokenizer.decode_bytes([token], skip_special_tokens=True) for token in tokens]
    text, places = character_places(b"".join(parts))
    offsets, certain = [], []
    for index, part in enumerate(parts):
        before = b"".join(parts[:index])
        so_far = len(codecs.utf_8_decode(before, "replace", False)[0])
        offsets.append(places[len(before)] if part else max([so_far, *offsets[-1:]]))
        certain.append(len(codecs.utf_8_decode(before + part, "replace", False)[0]))
    certain[-1] = len(text)
    for end in range(1, len(text) + 1):
        num_tokens = next(number for number, length in enumerate(certain, 1) if length >= end)
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete and num_tokens > min_tokens:
            stop = max(complete, key=len)
            kept = [index for index, offset in enumerate(offsets[:num_tokens]) if offset < end - len(stop)]
            return text[: end - len(stop)], [tokens[index] for index in kept], [offsets[i] for i in kept], stop
    return text, tokens, offsets, None


@pytest.mark.case("D38")
@pytest.mark.case("D39")
@settings(max_examples=400)
@given(data=st.data())
def test_deltas_add_up_to_the_answer_as_a_whole(pieces_tokenizer: Tokenizer, data: st.DataObject) -> None:  # B29, B37
    """Whole characters, parts of characters and control tokens, with stop strings across them."""
    control = pieces_tokenizer.special_tokens["<|e|>"]
    token = st.sampled_from(
        [ord("a"), ord("b"), 0xF0, 0x9F, 0x98, 0x80, 0xC3, 0xA9, 0xED, 0xA0, control, *range(256, 260)]
    )
    tokens = data.draw(st.lists(token, min_size=1, max_size=12))
    stops = data.draw(st.lists(st.text("abDEFHI\U0001f600é\ufffd", min_size=1, max_size=4), max_size=3))
    min_tokens = data.draw(st.integers(0, len(tokens)))
    detokenizer = Detokenizer(0, pieces_tokenizer, StopStrings(stops), {}, min_tokens)
    whole, fed, certain = Delta(0), 0, ""
    decoder = StreamDecoder(pieces_tokenizer, skip_special_tokens=True)
    for fed, token_id in enumerate(tokens, 1):
        logprobs = TokenLogprobs(-float(fed), ())
        delta = detokenizer.feed(TokenEvent(1, 0, token_id, logprobs, "length" if fed == len(tokens) else None))
        if delta is not None:
            assert delta.text or delta.finish_reason, "a delta says something"
            whole.extend(delta)
            if delta.finish_reason is not None:
                break
        certain += decoder.feed(token_id)
        assert whole.text == certain[: len(certain) - held_back(certain, stops)], "no more is held back, and no less"
    text, kept, offsets, stop = slow_answer(pieces_tokenizer, tokens, stops, min_tokens)
    assert (whole.text, whole.stop_reason) == (text, stop)
    assert whole.finish_reason == ("length" if stop is None else "stop")
    assert (whole.tokens, whole.offsets) == (kept, offsets)
    assert [logprobs.chosen for logprobs in whole.logprobs] == [-float(index + 1) for index in range(len(kept))]


@settings(max_examples=300)
@given(data=st.data())
def test_a_choice_continues_from_any_delta_as_if_it_had_not_ended(
    pieces_tokenizer: Tokenizer, data: st.DataObject
) -> None:
    """The deltas after a cut are those of the choice that was not cut, in text, tokens and stop string."""
    control = pieces_tokenizer.special_tokens["<|e|>"]
    token = st.sampled_from([ord("a"), 0xF0, 0x9F, 0x98, 0x80, 0xC3, 0xA9, control, *range(256, 260)])
    tokens = data.draw(st.lists(token, min_size=1, max_size=12))
    stops = StopStrings(data.draw(st.lists(st.text("aDEFHI\U0001f600é\ufffd", min_size=1, max_size=4), max_size=3)))
    splits = data.draw(st.booleans())

    def deltas(given: list[int]) -> list[Delta]:
        detokenizer = Detokenizer(0, pieces_tokenizer, stops, {}, 0, splits_characters=splits)
        detokenizer.skip(given)
        rest = tokens[len(given) :]
        released = []
        for number, id_ in enumerate(rest, 1):
            delta = detokenizer.feed(TokenEvent(1, 0, id_, None, "length" if number == len(rest) else None))
            released += [] if delta is None else [delta]
            if delta is not None and delta.finish_reason is not None:
                break
        return released

    whole = deltas([])
    for number in range(len(whole)):
        before = [id_ for delta in whole[:number] for id_ in delta.tokens]
        after = deltas(before)
        assert [id_ for delta in after for id_ in delta.tokens] == [
            id_ for delta in whole[number:] for id_ in delta.tokens
        ]
        assert after[-1].stop_reason == whole[-1].stop_reason
        given_text = StreamDecoder(pieces_tokenizer).skip(before)
        rest, expected = ("".join(delta.text for delta in some) for some in (after, whole))
        assert given_text + rest == expected or (not rest and given_text.startswith(expected)), (
            "a stop string began there"
        )


def held_back(text: str, stops: list[str]) -> int:
    """The length of the longest end of a text that a stop string begins with and goes on after."""
    return max(
        (size for stop in stops for size in range(len(stop)) if text[len(text) - size :] == stop[:size]), default=0
    )


@pytest.mark.case("D38")
@pytest.mark.parametrize(
    ("tokens", "text", "offsets"),
    [
        ([97, 195, 65], "a\ufffdA", [0, 1, 2]),
        ([0xF0, 0x9F, 65, 0xC3, 0xC3, 0xA9], "\ufffdA\ufffdé", [0, 0, 1, 2, 3, 3]),
        ([0xE0, 0x80, 65], "\ufffd\ufffdA", [0, 1, 2]),  # E0 80 begins no character: Unicode 16, table 3-7
        ([0xC3, 0xC3], "\ufffd\ufffd", [0, 1]),
        ([0xED, 0xA0, 65], "\ufffd\ufffdA", [0, 1, 2]),  # nor does ED A0, which is of a surrogate
    ],
)
def test_a_token_after_a_cut_character_begins_after_its_replacement(
    pieces_tokenizer: Tokenizer, tokens: list[int], text: str, offsets: list[int]
) -> None:
    detokenizer = Detokenizer(0, pieces_tokenizer, StopStrings([]), {}, 0)
    whole = Delta(0)
    for index, token in enumerate(tokens, 1):
        delta = detokenizer.feed(TokenEvent(1, 0, token, None, "length" if index == len(tokens) else None))
        whole.extend(delta or Delta(0))
    assert (whole.text, whole.tokens, whole.offsets) == (text, tokens, offsets)


@pytest.mark.case("D38")
def test_the_token_that_ends_the_answer_begins_where_its_text_ends(pieces_tokenizer: Tokenizer) -> None:
    end = pieces_tokenizer.special_tokens["<|endoftext|>"]
    detokenizer = Detokenizer(0, pieces_tokenizer, StopStrings([]), {}, 0)
    assert detokenizer.feed(TokenEvent(1, 0, 0xC3)) is None
    delta = detokenizer.feed(TokenEvent(1, 0, end, None, "stop"))
    assert delta is not None
    assert (delta.text, delta.tokens, delta.offsets) == ("\ufffd", [0xC3, end], [0, 1])


def test_a_token_without_text_waits_for_a_stop_string_that_began_in_what_was_released(
    pieces_tokenizer: Tokenizer,
) -> None:
    """The choice that was not cut holds the control token back, with the "F" before it."""
    control = pieces_tokenizer.special_tokens["<|e|>"]
    detokenizer = Detokenizer(0, pieces_tokenizer, StopStrings(["Fa"]), {}, 0, splits_characters=True)
    detokenizer.skip(pieces_tokenizer.encode("DEF"))
    assert detokenizer.feed(TokenEvent(1, 0, control)) is None
    delta = detokenizer.feed(TokenEvent(1, 0, ord("a")))
    assert delta is not None
    assert (delta.text, delta.tokens, delta.stop_reason) == ("", [], "Fa")
