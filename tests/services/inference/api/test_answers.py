"""How tokens are spelt in answers; the bytes of U+1F600 are from the Unicode standard's table of UTF-8."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from services.inference.api.answers import GenerateShape, _frames, _whole
from services.inference.api.completions.schemas import StreamOptions
from services.inference.api.completions.shape import CompletionShape
from services.inference.engine import TokenLogprobs
from services.inference.generation.detokenizer import Delta
from services.inference.generation.prepare import Plan
from services.inference.generation.prompts import Prompt
from services.inference.generation.stop_strings import StopStrings
from shared.bpe import Tokenizer

EMOJI = [0xF0, 0x9F, 0x98, 0x80]


@pytest.fixture
def plan() -> Plan:
    prompt = Prompt(ids=(65,), text="A", offsets=(0,))
    return Plan([prompt], 1, [], 7, StopStrings([]), {}, 0, echo=True)


@pytest.fixture
def delta() -> Delta:
    """The four bytes of one character, as tokens of their own; and what no distribution should give, but may."""
    logprobs = [TokenLogprobs(-0.5, ((token, -0.5), (EMOJI[0], float("-inf")))) for token in EMOJI]
    return Delta("\U0001f600", list(EMOJI), [0, 0, 0, 0], logprobs, finish_reason="length")


def test_parts_of_characters_have_their_real_bytes(pieces_tokenizer: Tokenizer, plan: Plan, delta: Delta) -> None:
    """B39: joined, the entries' bytes are those of the text."""
    shape = GenerateShape(plan, pieces_tokenizer, id_="gen-1", model="demo", logprobs=True)
    content = json.loads(json.dumps(shape.part(0, delta, None), allow_nan=False))
    entries = content["choices"][0]["logprobs"]
    assert [entry["bytes"] for entry in entries] == [[240], [159], [152], [128]]
    assert [entry["token"] for entry in entries] == ["\ufffd"] * 4
    assert entries[1]["top_logprobs"][1] == {"id": 0xF0, "token": "\ufffd", "bytes": [240], "logprob": -9999.0}  # B54


def test_in_the_legacy_format_no_two_tokens_look_the_same(
    pieces_tokenizer: Tokenizer, plan: Plan, delta: Delta
) -> None:
    shape = CompletionShape(
        plan, pieces_tokenizer, id_="cmpl-1", model="demo", num_logprobs=2, options=StreamOptions(), usage=lambda: None
    )
    content: Any = json.loads(json.dumps(shape.part(0, delta, None), allow_nan=False))
    logprobs = content["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80"]
    assert logprobs["top_logprobs"][1] == {"bytes:\\x9f": -0.5, "bytes:\\xf0": -9999.0}
    assert logprobs["text_offset"] == [1, 1, 1, 1], "after the prompt, and all within one character"


@pytest.mark.parametrize(("count", "beside"), [(3, False), (1000, True)])
def test_long_lists_of_log_probabilities_are_written_beside_the_event_loop(count: int, beside: bool) -> None:
    """Thousands of tokens with 20 alternatives each take seconds to write: other clients' tokens go out meanwhile."""
    threads: list[int] = []

    class Shape:
        def whole(self, *_: Any) -> dict[str, Any]:
            threads.append(threading.get_ident())
            return {}

        part, end = whole, lambda *_: None

    async def steps() -> AsyncIterator[list[tuple[int, Delta]]]:
        yield [(0, Delta("a", prompt_logprobs=(TokenLogprobs(-1.0, ()),) * count, finish_reason="length"))]

    async def answer() -> None:
        generation: Any = SimpleNamespace(
            steps=steps, finished=True, usage=lambda: None, plan=SimpleNamespace(num_choices=1)
        )
        assert await _whole(generation, Shape()) == b"{}"
        assert [part async for part in _frames(generation, Shape())] == [b"data: {}\n\n", b"data: [DONE]\n\n"]
        assert [thread != threading.get_ident() for thread in threads] == [beside, beside]

    asyncio.run(answer())
