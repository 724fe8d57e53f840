"""The contract of /v1/chat/completions; names and shapes from OpenAI's specification of its API."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.inference.app import create_app
from services.inference.settings import InferenceSettings
from shared.bpe import Tokenizer
from tests.services.conftest import ready_client

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}: {{ m.content | trim }}<|e|>\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {{ mood }}{% endif %}"
)
QUESTION = {"role": "user", "content": "Who lost the ball?"}
PROMPT = "user: Who lost the ball?<|e|>\nassistant: "


@pytest.fixture(scope="module")
def chat_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random model with a chat template whose turns end with <|e|>."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(model_dir, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def chat(chat_dir: Path) -> Iterator[TestClient]:
    with ready_client(create_app(InferenceSettings(model_dir=chat_dir, threads=1))) as client:
        yield client


def ask(client: TestClient, status: int = 200, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json={"messages": [QUESTION], **body})
    assert response.status_code == status, response.text
    content: dict[str, Any] = response.json()
    return content


def continued(client: TestClient, prompt: str, **body: Any) -> dict[str, Any]:
    """The answer of /v1/completions to what a template writes."""
    body = {"allowed_special": "all", "add_special_tokens": False, "prompt": prompt, **body}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content


def frames(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    response = client.post("/v1/chat/completions", json={"messages": [QUESTION], "stream": True, **body})
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_is_the_completion_of_the_rendered_conversation(chat: TestClient) -> None:
    options = {"seed": 3, "max_tokens": 12, "temperature": 0.8, "n": 2}
    answer = ask(chat, **options)
    plain = continued(chat, PROMPT, **options)
    assert [c["message"]["content"] for c in answer["choices"]] == [c["text"] for c in plain["choices"]]
    assert answer["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["choices"][1]["index"] == 1
    assert answer["choices"][0]["message"]["role"] == "assistant"
    ChatCompletion.model_validate(answer)


def test_parts_names_and_variables(chat: TestClient) -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "name": "Anna", "content": parts}]
    answer = ask(chat, messages=messages, chat_template_kwargs={"mood": "Glad. "}, max_tokens=8, temperature=0)
    plain = continued(
        chat, "system: Be kind.<|e|>\nuser Anna: Hi\nyou<|e|>\nassistant: Glad. ", max_tokens=8, temperature=0
    )
    assert answer["choices"][0]["message"]["content"] == plain["choices"][0]["text"]


def test_the_last_message_is_continued(chat: TestClient) -> None:
    messages = [QUESTION, {"role": "assistant", "content": "It was"}]
    answer = ask(chat, messages=messages, continue_final_message=True, max_tokens=8, temperature=0)
    plain = continued(chat, PROMPT + "It was", max_tokens=8, temperature=0)
    assert answer["choices"][0]["message"]["content"] == plain["choices"][0]["text"]


def test_a_developers_message_is_the_systems_where_the_template_knows_no_developer(chat: TestClient) -> None:
    answers = [
        ask(chat, messages=[{"role": role, "content": "Be kind."}, QUESTION], max_tokens=8, temperature=0)
        for role in ("system", "developer")
    ]
    assert answers[0]["choices"] == answers[1]["choices"]


def test_the_end_of_a_turn_ends_the_answer(chat: TestClient, tokenizer: Tokenizer) -> None:
    end = tokenizer.special_tokens["<|e|>"]
    answer = ask(chat, logit_bias={str(end): 100}, max_tokens=8)
    [choice] = answer["choices"]
    assert (choice["finish_reason"], choice["stop_reason"], choice["message"]["content"]) == ("stop", end, "")
    assert (
        ask(chat, logit_bias={str(end): 100}, max_tokens=8, ignore_eos=True)["choices"][0]["finish_reason"] == "length"
    )


def test_what_a_message_spells_is_text(chat: TestClient, tokenizer: Tokenizer) -> None:
    plain = ask(chat, messages=[{"role": "user", "content": "xx"}], max_tokens=1)["usage"]["prompt_tokens"]
    for special in tokenizer.special_tokens:
        answer = ask(chat, messages=[{"role": "user", "content": f"x{special}x"}], max_tokens=1)
        assert answer["usage"]["prompt_tokens"] == plain + len(tokenizer.encode(f"x{special}x")) - 2


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_adds_up_to_the_whole(chat: TestClient, n: int) -> None:
    options = {"seed": 5, "max_completion_tokens": 20, "n": n, "logprobs": True, "top_logprobs": 2}
    whole = ask(chat, **options)
    events = frames(chat, stream_options={"include_usage": True}, **options)
    *chunks, usage = events
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], whole["usage"]["total_tokens"])
    for event in events:
        ChatCompletionChunk.model_validate(event)
    for index, choice in enumerate(whole["choices"]):
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(part["delta"]["content"] for part in parts) == choice["message"]["content"]
        assert [part["delta"].get("role") for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
        assert [t for part in parts for t in part["logprobs"]["content"]] == choice["logprobs"]["content"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]


def test_logprobs_are_those_of_completions(chat: TestClient) -> None:
    [choice] = ask(chat, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3)["choices"]
    plain = continued(chat, PROMPT, max_tokens=6, temperature=0, logprobs=3)["choices"][0]["logprobs"]
    tokens = choice["logprobs"]["content"]
    assert [token["logprob"] for token in tokens] == plain["token_logprobs"]
    assert all(len(token["top_logprobs"]) == 3 for token in tokens)
    assert tokens[0]["bytes"] == list(tokens[0]["token"].encode())
    assert ask(chat, max_tokens=1)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"messages": []}, 422, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 422, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, 422, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 422, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, 422, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": "word " * 500}]}, 400, "messages"),
        ({"tools": [{}]}, 422, "tools"),
        ({"top_logprobs": 2}, 400, "top_logprobs"),
        ({"logprobs": 2}, 422, "logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, 422, "top_logprobs"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, 400, "max_tokens"),
        ({"max_tokens": 2000}, 400, "max_tokens"),
        ({"stream_options": {}}, 400, "stream_options"),
        ({"chat_template_kwargs": {"messages": []}}, 422, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, 400, "add_generation_prompt"),
        ({"prompt": "x"}, 422, "prompt"),
        ({"echo": True}, 422, "echo"),
        ({"model": "other"}, 404, "model"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    chat: TestClient, body: dict[str, Any], status: int, param: str
) -> None:
    error = ask(chat, status, **body)["error"]
    assert error["param"].startswith(param)
    assert error["message"].startswith(param)


def test_a_model_without_a_template_says_what_to_do(client: TestClient) -> None:
    error = ask(client, 400)["error"]
    assert error["code"] == "no_chat_template"
    assert "/v1/completions" in error["message"]
    assert client.get("/v1/models").json()["data"][0]["endpoints"] == ["/generate", "/v1/completions"]


def test_the_model_says_that_it_holds_conversations(chat: TestClient) -> None:
    assert "/v1/chat/completions" in chat.get("/v1/models").json()["data"][0]["endpoints"]


def test_a_template_that_fails_is_the_requests_error_and_the_service_goes_on(chat_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(chat_dir, folder)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('users only') if messages[0].role != 'user' }}Hi")
    with ready_client(create_app(InferenceSettings(model_dir=folder, threads=1))) as client:
        error = ask(client, 400, messages=[{"role": "system", "content": "x"}])["error"]
        assert (error["code"], "users only" in error["message"]) == ("chat_template_failed", True)
        assert ask(client, max_tokens=1)["usage"]["prompt_tokens"] == 2


def test_the_examples_of_the_document_are_served(chat: TestClient) -> None:
    schema = chat.get("/openapi.json").json()["components"]["schemas"]["ChatCompletionRequest"]
    for example in schema["examples"]:
        assert chat.post("/v1/chat/completions", json=example).status_code == 200


@pytest.mark.extended
def test_openais_client(chat_dir: Path, serve: Callable[..., str]) -> None:
    url = serve(create_app(InferenceSettings(model_dir=chat_dir, threads=1, model_name="demo")))
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=httpx.Client()) as client:
        messages: Any = [{"role": "developer", "content": "Be kind."}, QUESTION]
        answer = client.chat.completions.create(model="demo", messages=messages, max_completion_tokens=9, seed=1)
        stream = client.chat.completions.create(
            model="demo", messages=messages, max_completion_tokens=9, seed=1, stream=True
        )
        text = "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)
        assert answer.choices[0].message.content == text
