"""Fields that clients send and that ask for nothing; the bodies are those that the named clients sent to a recorder."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

pytestmark = pytest.mark.case("D42")

ROUTES = ("/generate", "/v1/completions")
PLAIN = {"prompt": "Once", "max_tokens": 4, "temperature": 0, "ignore_eos": True}

# guidellm's and vLLM's bodies are read from their sources (request_handlers.py, endpoint_request_func.py, protocol.py).
CLIENTS: dict[str, dict[str, Any]] = {
    "langchain-openai 1.7": {
        "frequency_penalty": 0, "logprobs": None, "n": 1, "presence_penalty": 0, "seed": None, "top_p": 1,
    },
    "litellm 1.110": {"stream": False},
    "guidellm": {"stop": None, "ignore_eos": True, "max_completion_tokens": 4},
    "vllm bench serve": {"repetition_penalty": 1.0, "logprobs": None},
    "vLLM's sampling parameters": {
        "best_of": 1, "use_beam_search": False, "top_k": 0, "min_p": 0.0, "length_penalty": 1.0,
        "early_stopping": False, "stop_token_ids": [], "include_stop_str_in_output": False, "min_tokens": 0,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True, "truncate_prompt_tokens": None, "allowed_token_ids": None,
        "bad_words": [], "add_special_tokens": True, "guided_json": None, "structured_outputs": None, "priority": 0,
        "logits_processors": None, "return_token_ids": False, "return_tokens_as_token_ids": False,
        "response_format": {"type": "text"}, "kv_transfer_params": None, "cache_salt": None,
    },
    "OpenAI's": {"metadata": None, "store": False, "service_tier": "auto", "suffix": None, "logit_bias": None},
    "empty": {"metadata": {}, "service_tier": "default", "spaces_between_special_tokens": False, "length_penalty": 1},
}  # fmt: skip


def choices(client: TestClient, route: str, **body: Any) -> Any:
    response = client.post(route, json={**PLAIN, **body})
    assert response.status_code == 200, response.text
    return response.json()["choices"]


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("route", ROUTES)
def test_what_asks_for_nothing_changes_nothing(client: TestClient, route: str, name: str) -> None:
    assert choices(client, route, **CLIENTS[name]) == choices(client, route)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("use_beam_search", True, 422),
        ("use_beam_search", 0, 422),
        ("skip_special_tokens", 1.0, 422),
        ("priority", False, 422),
        ("length_penalty", 0.9, 422),
        ("early_stopping", True, 422),
        ("skip_special_tokens", False, 422),
        ("include_stop_str_in_output", True, 422),
        ("bad_words", ["x"], 422),
        ("priority", 1, 422),
        ("return_token_ids", True, 422),
        ("return_tokens_as_token_ids", True, 422),
        ("response_format", {"type": "json_object"}, 422),
        ("metadata", {"a": "b"}, 422),
        ("store", True, 422),
        ("service_tier", "flex", 422),
        ("best_of", 2, 400),
        ("max_completion_tokens", 5, 400),
        ("guided_json", {}, 422),
        ("truncate_prompt_tokens", 5, 422),
        ("prompts", "x", 422),
    ],
)
def test_what_asks_for_something_else_is_refused_by_name(
    client: TestClient, route: str, field: str, value: Any, status: int
) -> None:
    response = client.post(route, json={**PLAIN, field: value})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["message"].startswith(field)
    assert error["param"].startswith(field)


@pytest.mark.parametrize("route", ROUTES)
def test_the_document_says_that_null_is_nothing(client: TestClient, route: str) -> None:
    document = client.get("/openapi.json").json()
    name = document["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][name.rsplit("/", 1)[1]]
    assert schema["additionalProperties"] == {"type": "null"}


@pytest.mark.parametrize("include_usage", [True, False, None])
def test_usage_comes_in_each_frame_where_that_is_asked_for(client: TestClient, include_usage: bool | None) -> None:
    """As guidellm counts tokens: a frame's are those so far, and the last one's those of the whole answer."""
    body = {**PLAIN, "prompt": ["Once", "fox"], "n": 2, "seed": 1}
    options = {"include_usage": include_usage, "continuous_usage_stats": True}
    streamed = client.post("/v1/completions", json={**body, "stream": True, "stream_options": options}).text
    *frames, done, _ = streamed.split("\n\n")
    assert done == "data: [DONE]"
    contents = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    usage = client.post("/v1/completions", json=body).json()["usage"]
    counts = [content["usage"]["completion_tokens"] for content in contents]
    assert counts == sorted(counts)
    assert counts[-1] == usage["completion_tokens"] == 16
    for content in contents:
        assert content["usage"]["prompt_tokens"] == usage["prompt_tokens"]
        assert content["usage"]["total_tokens"] == usage["prompt_tokens"] + content["usage"]["completion_tokens"]
    assert [content["choices"] == [] for content in contents] == [False] * (len(contents) - 1) + [bool(include_usage)]
    plain = {**body, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": False}}
    frames = client.post("/v1/completions", json=plain).text.split("\n\n")[:-3]
    assert {json.loads(frame.removeprefix("data: "))["usage"] for frame in frames} == {None}
