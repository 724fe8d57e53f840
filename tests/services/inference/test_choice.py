import time

from services.inference.choice import Choice
from services.inference.engine import TokenEvent, TokenLogprobs
from services.inference.stopping import StopStrings
from shared.bpe import Tokenizer


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
