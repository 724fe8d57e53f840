"""How tokens are spelled in answers; the bytes of U+1F600 are from the Unicode standard's table of UTF-8."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from services.inference.api.completions import CompletionResponseBuilder, StreamOptions
from services.inference.api.generate import GenerateRequest, GenerateResponseBuilder
from services.inference.api.service import _body, _events
from services.inference.engine import TokenLogprobs
from services.inference.generation.detokenizer import Delta
from services.inference.generation.prepare import PreparedRequest
from services.inference.generation.prompts import Prompt
from services.inference.generation.stop_strings import StopStrings
from shared.bpe import Tokenizer

EMOJI = [0xF0, 0x9F, 0x98, 0x80]


@pytest.fixture
def prepared() -> PreparedRequest:
    prompt = Prompt(ids=(65,), text="A", offsets=(0,))
    request = GenerateRequest(prompt=[65], logprobs=2, echo=True)
    return PreparedRequest(request, [prompt], [], 7, StopStrings([]), {})


@pytest.fixture
def delta() -> Delta:
    """The four bytes of one character, as tokens of their own; and what no distribution should give, but may."""
    logprobs = [TokenLogprobs(-0.5, ((token, -0.5), (EMOJI[0], float("-inf")))) for token in EMOJI]
    return Delta(0, "\U0001f600", list(EMOJI), [0, 0, 0, 0], logprobs, finish_reason="length")


def test_parts_of_characters_have_their_real_bytes(
    pieces_tokenizer: Tokenizer, prepared: PreparedRequest, delta: Delta
) -> None:
    """B39: joined, the entries' bytes are those of the text."""
    builder = GenerateResponseBuilder(prepared, pieces_tokenizer, id_="gen-1", model="demo")
    content = json.loads(json.dumps(builder.chunk(delta, dict, is_last=False), allow_nan=False))
    entries = content["choices"][0]["logprobs"]
    assert [entry["bytes"] for entry in entries] == [[240], [159], [152], [128]]
    assert [entry["token"] for entry in entries] == ["\ufffd"] * 4
    assert entries[1]["top_logprobs"][1] == {"id": 0xF0, "token": "\ufffd", "bytes": [240], "logprob": -9999.0}  # B54


def test_in_the_legacy_format_no_two_tokens_look_the_same(
    pieces_tokenizer: Tokenizer, prepared: PreparedRequest, delta: Delta
) -> None:
    builder = CompletionResponseBuilder(prepared, pieces_tokenizer, id_="cmpl-1", model="demo", options=StreamOptions())
    content: Any = json.loads(json.dumps(builder.chunk(delta, dict, is_last=False), allow_nan=False))
    logprobs = content["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80"]
    assert logprobs["top_logprobs"][1] == {"bytes:\\x9f": -0.5, "bytes:\\xf0": -9999.0}
    assert logprobs["text_offset"] == [1, 1, 1, 1], "after the prompt, and all within one character"


@pytest.mark.parametrize(("count", "beside"), [(3, False), (1000, True)])
def test_long_lists_of_log_probabilities_are_written_beside_the_event_loop(count: int, beside: bool) -> None:
    """Thousands of tokens with 20 alternatives each take seconds to write: other clients' tokens go out meanwhile."""
    threads: list[int] = []

    class Builder:
        def response(self, *_: Any, **__: Any) -> dict[str, Any]:
            threads.append(threading.get_ident())
            return {}

        chunk, usage_chunk = response, lambda *_: None

    async def deltas() -> AsyncIterator[list[Delta]]:
        yield [Delta(0, "a", prompt_logprobs=(TokenLogprobs(-1.0, ()),) * count, finish_reason="length")]

    async def answer() -> None:
        generation: Any = SimpleNamespace(
            deltas=deltas,
            is_finished=True,
            prepared=SimpleNamespace(num_choices=1, num_prompt_tokens=1),
            num_completion_tokens=1,
            num_cached_tokens=0,
        )
        assert await _body(generation, Builder()) == b"{}"
        assert [part async for part in _events(generation, Builder())] == [b"data: {}\n\n", b"data: [DONE]\n\n"]
        assert [thread != threading.get_ident() for thread in threads] == [beside, beside]

    asyncio.run(answer())
