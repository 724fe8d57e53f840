"""Continuing an answer from its first tokens: the rest is what would have come without the interruption."""

from itertools import accumulate
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.bpe import Tokenizer

SAMPLED = {
    "prompt": "Once upon a time",
    "max_tokens": 40,
    "temperature": 1.3,
    "top_k": 50,
    "repetition_penalty": 1.3,
    "presence_penalty": 0.7,
    "frequency_penalty": 0.3,
    "min_tokens": 30,
    "seed": 5,
    "logprobs": 3,
}


def ask(client: TestClient, **body: Any) -> Any:
    response = client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_rest_is_that_of_the_uninterrupted_answer(client: TestClient) -> None:
    """With every parameter that depends on what was generated before."""
    [whole] = ask(client, **SAMPLED)["choices"]
    assert len(whole["tokens"]) >= 30
    for cut in (1, 2, 15, 16, 17, 29):
        answer = ask(client, **SAMPLED, continue_tokens=whole["tokens"][:cut])
        [rest] = answer["choices"]
        assert rest["tokens"] == whole["tokens"][cut:]
        assert rest["logprobs"] == whole["logprobs"][cut:]
        assert rest["finish_reason"] == whole["finish_reason"]
        assert answer["usage"]["completion_tokens"] == len(rest["tokens"])


def test_the_text_of_a_cut_stream_and_its_rest_add_up(client: TestClient, tokenizer: Tokenizer) -> None:
    """Cut between any two frames, also where the start of a stop string is held back."""
    body = {**SAMPLED, "logit_bias": {str(ord(character)): 30 for character in "abc"}, "stop": ["abca", "cb"]}
    frames = [choice for event in stream(client, **body) for choice in event["choices"]]
    text = "".join(frame["text"] for frame in frames)
    tokens = list(accumulate((frame["tokens"] for frame in frames), lambda before, new: before + new))
    assert len(frames) > 3
    for before in tokens[:-1]:
        [rest] = ask(client, **body, continue_tokens=before)["choices"]
        assert (tokenizer.decode(before) + rest["text"], before + rest["tokens"]) == (text, tokens[-1])
        assert rest["stop_reason"] == frames[-1]["stop_reason"]


def stream(client: TestClient, **body: Any) -> list[Any]:
    import json

    response = client.post("/generate", json={**body, "stream": True})
    assert response.status_code == 200, response.text
    return [json.loads(frame[6:]) for frame in response.text.split("\n\n")[:-2]]


def test_each_choice_continues_alone_by_its_own_seed(client: TestClient) -> None:
    answer = ask(client, **SAMPLED, n=3)
    assert answer["choice_seeds"][0] == answer["seed"]
    for seed, choice in zip(answer["choice_seeds"], answer["choices"], strict=True):
        assert seed < 2**53, "JavaScript's numbers are exact up to there"
        alone = {**SAMPLED, "seed": seed, "continue_tokens": choice["tokens"][:7]}
        [rest] = ask(client, **alone)["choices"]
        assert rest["tokens"] == choice["tokens"][7:]


def test_another_token_begins_another_branch(client: TestClient) -> None:
    [whole] = ask(client, **SAMPLED)["choices"]
    other = next(entry["id"] for entry in whole["logprobs"][4]["top_logprobs"] if entry["id"] != whole["tokens"][4])
    branch = [*whole["tokens"][:4], other]
    body = {**SAMPLED, "continue_tokens": branch, "prompt_logprobs": 3}
    answer = ask(client, **body, n=2)
    first, second = (choice["tokens"] for choice in answer["choices"])
    assert len(first) >= 26
    assert first != second
    given = answer["choices"][0]["prompt_logprobs"][-5:]
    assert [entry["id"] for entry in given] == branch
    assert given[:4] == whole["logprobs"][:4], "read at once, they score as when they were generated"
    assert given[4]["top_logprobs"] == whole["logprobs"][4]["top_logprobs"]
    assert ask(client, **{**body, "prompt_logprobs": None})["choices"][0]["tokens"] == first


def test_completions_continue_the_same_way(client: TestClient) -> None:
    body = {name: value for name, value in SAMPLED.items() if name != "logprobs"}
    [whole] = ask(client, **body, logprobs=0)["choices"]
    response = client.post("/v1/completions", json={**body, "logprobs": 0, "continue_tokens": whole["tokens"][:9]})
    [rest] = response.json()["choices"]
    assert rest["text"] == ask(client, **body, continue_tokens=whole["tokens"][:9])["choices"][0]["text"]
    assert rest["logprobs"]["text_offset"][0] == 0, "in the text of the response"
    several = client.post("/v1/completions", json={"prompt": ["a", "b"], "continue_tokens": [1]})
    assert (several.status_code, several.json()["error"]["param"]) == (400, "continue_tokens")


def test_what_was_read_before_is_cached(client: TestClient) -> None:
    prompt = "Anna had a friend called fox. " * 4
    [whole] = ask(client, prompt=prompt, max_tokens=30, seed=1, ignore_eos=True)["choices"]
    again = ask(client, prompt=prompt, max_tokens=30, seed=1, ignore_eos=True, continue_tokens=whole["tokens"][:20])
    usage = again["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] - 20 - 16, "whole blocks"


def test_nothing_is_left_to_generate(client: TestClient, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Anna")
    body = {"prompt": "a", "max_tokens": len(ids), "continue_tokens": ids}
    [choice] = ask(client, **body, prompt_logprobs=0)["choices"]
    assert (choice["text"], choice["tokens"], choice["finish_reason"]) == ("", [], "length")
    assert [entry["id"] for entry in choice["prompt_logprobs"][-len(ids) :]] == ids
    assert ask(client, **body)["usage"]["completion_tokens"] == 0
    assert ask(client, **SAMPLED, continue_tokens=[])["choices"] == ask(client, **SAMPLED)["choices"]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"continue_tokens": [320]}, "continue_tokens", "320"),
        ({"continue_tokens": [1, 2, 3], "max_tokens": 2}, "continue_tokens", "3 tokens exceed max_tokens (2)"),
        ({"continue_tokens": [1], "echo": True}, "echo", "continue_tokens"),
        ({"continue_tokens": [1] * 200, "max_tokens": 200}, "max_tokens", "exceeds the limit of"),
    ],
)
def test_what_cannot_be_continued_is_refused(client: TestClient, body: Any, param: str, message: str) -> None:
    response = client.post("/generate", json={"prompt": "a", **body})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert message in error["message"]
