"""The contract of /v1/completions and /v1/models; names and shapes from OpenAI's specification of its API."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from services.inference.api.completions import CompletionRequest, CompletionResponse
from shared.bpe import Tokenizer

CONTEXT = 128
JSON = {"Content-Type": "application/json"}


def refusal(client: TestClient, **body: Any) -> tuple[int, Any]:
    response = client.post("/v1/completions", content=json.dumps(body), headers=JSON)
    return response.status_code, response.json()["error"]


def test_the_answer_has_openais_shape(complete: Any, tokenizer: Tokenizer) -> None:
    answer = complete(model="tiny", prompt="Once upon", max_tokens=3, seed=1, ignore_eos=True, user="anna")
    CompletionResponse.model_validate(answer)
    assert answer.keys() == {"id", "object", "created", "model", "choices", "usage"}
    assert (answer["object"], answer["model"], answer["id"][:5]) == ("text_completion", "tiny", "cmpl-")
    prompt_tokens = len(tokenizer.encode("Once upon"))
    assert answer["usage"]["prompt_tokens"] == prompt_tokens
    assert answer["usage"]["total_tokens"] == prompt_tokens + 3
    [choice] = answer["choices"]
    assert choice.keys() == {"index", "text", "logprobs", "finish_reason", "stop_reason"}
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "length")


def test_it_says_what_generate_says(client: TestClient, complete: Any, tokenizer: Tokenizer) -> None:
    body = {"max_tokens": 12, "seed": 5, "temperature": 0.9, "top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1}
    expected = client.post("/generate", json={"prompt": "Once upon", **body}).json()["choices"][0]
    for prompt in ("Once upon", tokenizer.encode("Once upon"), ["Once upon"], [tokenizer.encode("Once upon")]):
        [choice] = complete(prompt=prompt, **body)["choices"]
        assert {name: choice[name] for name in ("text", "finish_reason", "stop_reason")} == {
            name: expected[name] for name in ("text", "finish_reason", "stop_reason")
        }


def test_choices_are_numbered_prompt_by_prompt(complete: Any, chunks: Any) -> None:  # B63
    prompts = ["A1", "B22", "C333"]
    body = {"prompt": prompts, "n": 2, "echo": True, "max_tokens": 6, "seed": 3, "ignore_eos": True}
    answer = complete(**body)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    for index, choice in enumerate(answer["choices"]):
        assert choice["text"].startswith(prompts[index // 2])
        alone = complete(**{**body, "prompt": prompts[index // 2]})["choices"][index % 2]
        assert alone == {**choice, "index": index % 2}, "an answer does not depend on the prompts beside it"
    frames = chunks(**body)
    for choice in answer["choices"]:
        parts = [frame["choices"][0] for frame in frames if frame["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]
    assert answer["usage"]["completion_tokens"] == 6 * 6
    assert answer["usage"]["prompt_tokens"] == 2 + 3 + 4


def test_usage_in_streams_is_asked_for(chunks: Any, complete: Any) -> None:  # B30
    body = {"prompt": "Once", "max_tokens": 4, "seed": 1, "ignore_eos": True}
    *parts, last = chunks(**body, stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == ([], complete(**body)["usage"])
    assert [part["usage"] for part in parts] == [None] * len(parts)
    for options in ({}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
        frames = chunks(**body, **options)
        assert not [frame for frame in frames if "usage" in frame or not frame["choices"]]
        assert "".join(frame["choices"][0]["text"] for frame in frames) == complete(**body)["choices"][0]["text"]


def test_stream_options_are_for_streams(client: TestClient) -> None:  # B30
    for stream in ({}, {"stream": False}, {"stream": None}):
        status, error = refusal(client, prompt="a", stream_options={"include_usage": True}, **stream)
        assert (status, error["param"]) == (400, "stream_options")


def test_defaults_are_openais(complete: Any, client: TestClient) -> None:  # B62
    answer = complete(prompt="Once upon", ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 16
    full = complete(prompt=[65] * (CONTEXT - 3), ignore_eos=True, max_tokens=None)
    assert (full["usage"]["completion_tokens"], full["choices"][0]["finish_reason"]) == (3, "length")
    assert refusal(client, prompt="a", max_tokens=-1)[0] == 422


def test_no_tokens(complete: Any, chunks: Any) -> None:  # B56
    for echo, text in ((False, ""), (True, "Once")):
        [choice] = complete(prompt="Once", max_tokens=0, echo=echo)["choices"]
        assert (choice["text"], choice["finish_reason"]) == (text, "length")
        [frame] = chunks(prompt="Once", max_tokens=0, echo=echo)
        assert frame["choices"][0] == choice


@pytest.mark.parametrize("prompt", ["", [""], ["a", ""], [], [[]], [[65], []]])
def test_nothing_to_start_from_is_refused(client: TestClient, prompt: Any) -> None:  # B57
    status, error = refusal(client, prompt=prompt)
    assert (status, error["code"]) == (400, "empty_prompt")


def test_the_prompt_that_is_too_long_is_named(client: TestClient) -> None:  # B55
    status, error = refusal(client, prompt=["a", "~" * CONTEXT])
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt[1]")
    assert f"{CONTEXT} tokens exceed the limit of {CONTEXT - 1}" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("suffix", "x", 400),
        ("suffix", "", 400),
        ("best_of", 2, 400),  # B58
        ("best_of", 0, 400),
        ("n", 9, 400),
        ("n", 129, 400),  # B58
        ("n", 0, 422),
        ("max_tokens", 10**9, 400),  # B58
        ("prompt", ["a"] * 1000, 400),  # B58: in all more than can ever wait here
        ("prompt", ["a"] * 2049, 422),
        ("prompt", None, 422),  # B57
        ("prompt", ["a", 5], 422),
        ("prompt", [[65], "a"], 422),
        ("prompt", [[65], [True]], 422),
        ("prompt", [[65], [-1]], 422),
        ("prompt", [[65], [100_000]], 400),
        ("prompt", [{}], 422),
        ("logprobs", 21, 422),
        ("logit_bias", {"320": 1}, 400),  # B61
        ("logit_bias", {"x": 1}, 422),
        ("stop_token_ids", [320], 400),
        ("min_tokens", 17, 400),
        ("stream_options", {"usage": True}, 422),
        ("chat_template", "x", 422),
        ("user", 5, 422),
    ],
)
def test_wrong_values_are_refused_by_field(
    client: TestClient, field: str, value: Any, status: int, stream: bool
) -> None:
    got, error = refusal(client, **{"prompt": "a", "stream": stream, field: value})
    assert got == status, error
    assert error["message"].startswith(field)
    assert error["param"].startswith(field)


def test_best_of_that_changes_nothing_is_accepted(complete: Any) -> None:
    assert len(complete(prompt="a", max_tokens=1, n=2, best_of=2)["choices"]) == 2
    complete(prompt="a", max_tokens=1, best_of=None, suffix=None, user=None, stream_options=None)


@pytest.mark.parametrize("stream", [False, True])
def test_another_model_is_refused_by_name(client: TestClient, stream: bool) -> None:  # B43
    status, error = refusal(client, model="gpt-4", prompt="a", stream=stream)  # B43
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'tiny'" in error["message"]


def test_request_ids_go_in_and_out(client: TestClient) -> None:
    response = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers={"X-Request-ID": "mine"})
    assert (response.headers["x-request-id"], response.json()["id"]) == ("mine", "cmpl-mine")


def test_documented_examples_work(client: TestClient) -> None:
    for example in client.get("/openapi.json").json()["components"]["schemas"]["CompletionRequest"]["examples"]:
        assert client.post("/v1/completions", json=example).status_code == 200


def test_biases_and_stop_tokens_reach_the_engine(complete: Any) -> None:  # B61
    biased = complete(prompt="Once", max_tokens=5, temperature=0, logit_bias={"65": 100}, ignore_eos=True)
    assert biased["choices"][0]["text"] == "AAAAA"
    body = {"prompt": "Once", "temperature": 0, "logit_bias": {"65": 100}, "stop_token_ids": [65]}
    [choice] = complete(**body)["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", 65)
    answer = complete(**body, min_tokens=3, max_tokens=8)
    assert 3 <= answer["usage"]["completion_tokens"] <= 8


def test_stop_strings_wait_for_min_tokens(complete: Any) -> None:
    body = {"prompt": "Once", "temperature": 0, "logit_bias": {"65": 100}, "stop": "A"}
    assert complete(**body)["choices"][0]["text"] == ""
    answer = complete(**body, min_tokens=3)
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("AAA", 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", [1] * 3_000_000),
        ("prompt", [[1] * 2000] * 1000),
        ("stop_token_ids", [1] * 3_000_000),
        ("stop_token_ids", [-1] * 3_000_000),
    ],
)
def test_large_lists_are_counted_before_each_entry_is_looked_at(field: str, value: list[Any]) -> None:
    with pytest.raises(ValidationError, match=r"the limit of 64|more than 524,288 token ids in total") as refused:
        CompletionRequest.model_validate({"prompt": "a", field: value})
    assert refused.value.error_count() == 1


def test_cached_tokens_are_those_of_whole_blocks_seen_before(complete: Any, chunks: Any) -> None:
    body = {"prompt": [70 + index for index in range(40)], "max_tokens": 2, "ignore_eos": True}

    def cached(usage: Any) -> int:
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached(complete(**body, n=3)["usage"]) == 0, "choices that share their prompt's run do not count"
    again = complete(**body, n=3)["usage"]
    assert (cached(again), again["prompt_tokens"], again["completion_tokens"]) == (32, 40, 6)
    assert cached(chunks(**body, stream_options={"include_usage": True})[-1]["usage"]) == 32
    both = complete(**{**body, "prompt": [body["prompt"], [90] * 20]})["usage"]
    assert (cached(both), both["prompt_tokens"]) == (32, 60)
