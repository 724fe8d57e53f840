import time

from hypothesis import given
from hypothesis import strategies as st

from services.inference.choice import Choice, Delta
from services.inference.engine import TokenEvent, TokenLogprobs
from services.inference.stopping import StopStrings
from shared.bpe import StreamDecoder, Tokenizer


def test_text_comes_in_whole_characters_and_logprobs_in_real_bytes(pieces_tokenizer: Tokenizer) -> None:  # B39
    choice = Choice(pieces_tokenizer, StopStrings([]), {})
    emoji = "\U0001f600".encode()
    logprobs = TokenLogprobs(-0.5, ((1, -0.5),))
    deltas = [choice.feed(TokenEvent(0, byte, logprobs)) for byte in emoji]
    assert deltas[:3] == [None, None, None]
    assert deltas[3] is not None
    assert (deltas[3].text, deltas[3].tokens) == ("\U0001f600", list(emoji))
    assert deltas[3].logprobs == [logprobs] * 4


def test_an_incomplete_character_at_the_end_is_one_replacement_character(pieces_tokenizer: Tokenizer) -> None:  # B37
    choice = Choice(pieces_tokenizer, StopStrings([]), {})
    assert choice.feed(TokenEvent(0, 0xF0)) is None
    delta = choice.feed(TokenEvent(0, 0x9F, finish_reason="length"))
    assert delta is not None
    assert (delta.text, delta.finish_reason) == ("\ufffd", "length")


def test_bytes_that_complete_a_character_of_the_prompt_are_replacements(pieces_tokenizer: Tokenizer) -> None:  # B42
    choice = Choice(pieces_tokenizer, StopStrings([]), {})  # the prompt ended in F0 9F
    deltas = [choice.feed(TokenEvent(0, token)) for token in (0x98, 0x80, ord("a"))]
    assert "".join(delta.text for delta in deltas if delta is not None) == "\ufffd\ufffda"


def test_text_is_linear_in_the_number_of_tokens(pieces_tokenizer: Tokenizer) -> None:  # B41
    def seconds(token: int, count: int) -> float:
        choice = Choice(pieces_tokenizer, StopStrings([]), {})
        started = time.process_time()
        for _ in range(count):
            choice.feed(TokenEvent(0, token))
        return time.process_time() - started

    for token in (ord("7"), 0x80):
        assert seconds(token, 50_000) < 5.0


def slow_answer(
    tokenizer: Tokenizer, tokens: list[int], stops: list[str]
) -> tuple[str, list[int], list[int], str | None]:
    """The specification: text, tokens, offsets and stop string of an answer that is looked at as a whole."""
    decoder = StreamDecoder(tokenizer, skip_special_tokens=True)
    text, offsets = "", []
    for token in tokens:
        offsets.append(len(text))
        text += decoder.feed(token)
    text += decoder.finish()
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            kept = [index for index, offset in enumerate(offsets) if offset < end - len(stop)]
            return text[: end - len(stop)], [tokens[index] for index in kept], [offsets[i] for i in kept], stop
    return text, tokens, offsets, None


@given(data=st.data())
def test_deltas_add_up_to_the_answer_as_a_whole(pieces_tokenizer: Tokenizer, data: st.DataObject) -> None:  # B29, B37
    """Whole characters, parts of characters and control tokens, with stop strings across them."""
    control = pieces_tokenizer.special_tokens["<|e|>"]
    token = st.sampled_from([ord("a"), ord("b"), 0xF0, 0x9F, 0x98, 0x80, 0xC3, 0xA9, control, *range(256, 260)])
    tokens = data.draw(st.lists(token, min_size=1, max_size=12))
    stops = data.draw(st.lists(st.text("abDEFHI\U0001f600é\ufffd", min_size=1, max_size=4), max_size=3))
    choice = Choice(pieces_tokenizer, StopStrings(stops), {})
    whole, fed = Delta(), 0
    for fed, token_id in enumerate(tokens, 1):
        logprobs = TokenLogprobs(-float(fed), ())
        delta = choice.feed(TokenEvent(0, token_id, logprobs, "length" if fed == len(tokens) else None))
        if delta is not None:
            assert delta.text or delta.finish_reason, "a delta says something"
            whole.extend(delta)
            if delta.finish_reason is not None:
                break
    text, kept, offsets, stop = slow_answer(pieces_tokenizer, tokens, stops)
    assert (whole.text, whole.stop_reason) == (text, stop)
    assert whole.finish_reason == ("length" if stop is None else "stop")
    assert (whole.tokens, whole.offsets) == (kept, offsets)
    assert [logprobs.chosen for logprobs in whole.logprobs] == [-float(index + 1) for index in range(len(kept))]
