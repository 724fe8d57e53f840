"""Prompts of one request that finish in an order of their own."""

import json
from collections import Counter
from typing import Any

import httpx
import pytest

PROMPTS = ["A1", "B22", "C333"]
LENGTHS = {"A1": 9, "B22": 5, "C333": 1}
SCRIPTS = {prompt: ["H"] * length + ["<|endoftext|>"] for prompt, length in LENGTHS.items()}


@pytest.fixture
def url(scripted: Any, serve: Any) -> str:
    app, _ = scripted(SCRIPTS, max_batch=6)
    return f"{serve(app)}/v1/completions"


def test_the_first_may_finish_last(url: str) -> None:  # B63
    body = {"prompt": PROMPTS, "n": 2, "echo": True, "max_tokens": 50}
    answer = httpx.post(url, json=body).json()
    texts = [prompt + "H" * LENGTHS[prompt] for prompt in PROMPTS for _ in range(2)]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert answer["usage"]["prompt_tokens"] == 2 + 3 + 4
    assert answer["usage"]["completion_tokens"] == 2 * sum(length + 1 for length in LENGTHS.values())

    response = httpx.post(url, json={**body, "stream": True, "stream_options": {"include_usage": True}})
    *frames, done, rest = response.text.split("\n\n")
    assert (done, rest, frames.count("data: [DONE]")) == ("data: [DONE]", "", 0)
    *parts, usage = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    streamed = [""] * 6
    for part in parts:
        [choice] = part["choices"]
        streamed[choice["index"]] += choice["text"]
    assert streamed == texts
    finished = [part["choices"][0]["index"] for part in parts if part["choices"][0]["finish_reason"]]
    assert Counter(finished) == Counter(range(6))
    assert sorted(finished[:2]) == [4, 5], "the last prompt was the first to finish"
    assert usage["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
