"""What becomes of a prompt: special tokens in it, its length, its places."""

import tracemalloc
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.inference.api.completions import CompletionRequest
from services.inference.api.generate import GenerateRequest
from services.inference.generation.prepare import prepare_request
from shared.bpe import Tokenizer
from shared.http import ApiError
from tests.services.conftest import character_places

CONTEXT = 128
ROUTES = ("/generate", "/v1/completions")
CHAT = "<|e|>user\nhi<|e|>"


def ask(client: TestClient, route: str, **body: Any) -> Any:
    response = client.post(route, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def error_of(client: TestClient, route: str, **body: Any) -> tuple[int, Any]:
    response = client.post(route, json=body)
    return response.status_code, response.json()["error"]


@pytest.mark.case("D43")
@pytest.mark.parametrize("route", ROUTES)
def test_special_tokens_are_recognized_where_they_are_allowed(
    client: TestClient, tokenizer: Tokenizer, route: str
) -> None:
    special = tokenizer.special_tokens["<|e|>"]
    wanted = [special, *tokenizer.encode("user\nhi"), special]
    body = {"prompt": CHAT, "max_tokens": 5, "temperature": 0, "ignore_eos": True, "echo": True}
    expected = ask(client, route, **{**body, "prompt": wanted})
    for allowed in ("all", ["<|e|>"], ["<|endoftext|>", "<|e|>"]):
        answer = ask(client, route, **body, allowed_special=allowed)
        assert answer["usage"]["prompt_tokens"] == len(wanted)
        assert answer["choices"] == expected["choices"]
    for fields in ({}, {"allowed_special": []}, {"allowed_special": None}, {"allowed_special": ["<|endoftext|>"]}):
        usage = ask(client, route, **body, **fields)["usage"]
        assert usage["prompt_tokens"] == len(tokenizer.encode(CHAT)) > len(wanted)


@pytest.mark.case("D43")
@pytest.mark.parametrize("route", ROUTES)
def test_names_that_are_no_special_tokens_are_refused(client: TestClient, route: str) -> None:
    status, error = error_of(client, route, prompt="a", allowed_special=["<|e|>", "fox"])
    assert (status, error["param"]) == (400, "allowed_special")
    assert "'fox', which is not a special token; known are '<|endoftext|>', '<|e|>'" in error["message"]
    for wrong in ("<|e|>", 5, [5], {"a": 1}, ["x"] * 4097):
        status, error = error_of(client, route, prompt="a", allowed_special=wrong)
        assert status == 422
        assert error["param"].startswith("allowed_special")


@pytest.mark.case("D43")
@pytest.mark.case("D38")
def test_places_in_a_text_with_special_tokens(client: TestClient, tokenizer: Tokenizer) -> None:
    text = "é<|e|>日<|e|>"
    body = {"prompt": text, "allowed_special": "all", "echo": True, "logprobs": 0, "max_tokens": 0}
    [choice] = ask(client, "/v1/completions", **body)["choices"]
    ids = tokenizer.encode(text, allowed_special="all")
    assert (choice["text"], len(choice["logprobs"]["tokens"])) == (text, len(ids))
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 6, 6, 6, 7]


@pytest.mark.case("D38")
@pytest.mark.parametrize(
    ("ids", "text", "offsets"),
    [
        ([97, 195, 65], "a\ufffdA", [0, 1, 2]),
        ([0xC3, 0xA9, 0xE2, 0x82, 65], "é\ufffdA", [0, 0, 1, 1, 2]),
        ([0xF0, 0x9F], "\ufffd", [0, 0]),
    ],
)
def test_places_behind_a_cut_character(client: TestClient, ids: list[int], text: str, offsets: list[int]) -> None:
    body = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 0}
    [choice] = ask(client, "/v1/completions", **body)["choices"]
    assert (choice["text"], choice["logprobs"]["text_offset"]) == (text, offsets)


@pytest.mark.case("D38")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([97, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0xED, 0xA0, 258, 300]), min_size=1))
def test_each_token_begins_at_its_place(client: TestClient, tokenizer: Tokenizer, ids: list[int]) -> None:
    body = {"prompt": ids[:CONTEXT], "echo": True, "logprobs": 0, "max_tokens": 0}
    [choice] = ask(client, "/v1/completions", **body)["choices"]
    parts = [tokenizer.token_bytes(token) for token in body["prompt"]]
    text, places = character_places(b"".join(parts))
    begins = [len(b"".join(parts[:index])) for index in range(len(parts))]
    assert (choice["text"], choice["logprobs"]["text_offset"]) == (text, [places[begin] for begin in begins])


LONG = "a" * 8_000_000


@pytest.mark.case("D08")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("route", "prompt", "field"),
    [
        ("/generate", LONG, "prompt"),
        ("/v1/completions", LONG, "prompt"),
        ("/v1/completions", [LONG], "prompt"),
        ("/v1/completions", ["one", LONG[:6_000_000], "three"], "prompt[1]"),
    ],
    ids=["generate", "one", "list", "several"],
)
def test_a_text_that_can_never_fit_is_refused_and_not_encoded(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, route: str, prompt: Any, field: str, stream: bool
) -> None:
    for name in ("encode", "encode_to_numpy", "encode_batch_to_numpy", "encode_with_offsets"):
        monkeypatch.setattr(Tokenizer, name, lambda *_, **__: pytest.fail("it was encoded"))
    status, error = error_of(client, route, prompt=prompt, stream=stream, echo=True, logprobs=1)
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", field)
    assert error["message"].startswith(f"{field}: at least ")
    assert (
        f"tokens exceed the limit of {CONTEXT - 1} (context length {CONTEXT}, shared by prompt and generated text)"
        in error["message"]
    )


@pytest.mark.case("D08")
@pytest.mark.parametrize(
    "request_", [GenerateRequest(prompt=LONG), CompletionRequest(prompt=["a", LONG])], ids=["one", "several"]
)
def test_the_refusal_takes_no_memory(client: TestClient, request_: Any) -> None:
    model = client.app.state.lifecycle.resource  # type: ignore[attr-defined]
    tracemalloc.start()
    try:
        with pytest.raises(ApiError, match="the limit of 127"):
            prepare_request(request_, model, 16)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000, "an eighth of the text"
    finally:
        tracemalloc.stop()


@pytest.mark.case("D08")
def test_the_longest_text_that_fits_is_served(client: TestClient, tokenizer: Tokenizer) -> None:
    """The bound refuses nothing that the exact count would not: all tokens are the longest one."""
    longest = max(tokenizer.special_tokens, key=len)
    assert len(longest) == tokenizer.max_token_bytes
    for count, status in ((CONTEXT, 200), (CONTEXT + 1, 400)):
        body = {"prompt": longest * count, "allowed_special": "all", "max_tokens": 0}
        assert client.post("/generate", json=body).status_code == status
