"""/tokenize and /detokenize; names and shapes from vLLM's OpenAPI document."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from services.inference.app import create_app
from services.inference.settings import InferenceSettings
from shared.bpe import Tokenizer
from tests.services.conftest import ready_client


@pytest.fixture(scope="module")
def chat(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The tiny random model with a template that gives each turn an end."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(model_dir, folder)
    template = "{% for m in messages %}{{ m.content }}<|e|>{% endfor %}{{ '>' if add_generation_prompt }}"
    (folder / "chat_template.jinja").write_text(template)
    with ready_client(create_app(InferenceSettings(model_dir=folder, threads=1))) as client:
        yield client


def post(client: TestClient, path: str, status: int = 200, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


def test_a_text(chat: TestClient, tokenizer: Tokenizer) -> None:
    text = "A fox 🦊 and <|e|>"
    found = post(chat, "/tokenize", prompt=text, return_token_strs=True)
    assert found["tokens"] == tokenizer.encode(text, add_special_tokens=True)
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 128)
    assert len(found["token_strs"]) == found["count"]
    assert found["token_strs"][0] == tokenizer.token_bytes(found["tokens"][0]).decode()
    assert post(chat, "/tokenize", prompt=text)["token_strs"] is None
    assert post(chat, "/detokenize", tokens=found["tokens"]) == {"prompt": text}
    assert post(chat, "/tokenize", prompt="")["tokens"] == []


def test_a_conversation(chat: TestClient, tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi <|e|>"}]
    end = tokenizer.special_tokens["<|e|>"]
    expected = [*tokenizer.encode("Hi <|e|>"), end, *tokenizer.encode(">")]
    assert post(chat, "/tokenize", messages=messages)["tokens"] == expected
    without = post(chat, "/tokenize", messages=messages, add_generation_prompt=False)
    assert without["tokens"] == expected[:-1]
    answer = post(chat, "/v1/chat/completions", messages=messages, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == len(expected)
    assert post(chat, "/detokenize", tokens=expected) == {"prompt": "Hi <|e|><|e|>>"}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, 400, "prompt"),
        ("/tokenize", {"prompt": 1}, 422, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("/detokenize", {"tokens": [99999]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 422, "tokens[0]"),
        ("/detokenize", {"tokens": "x"}, 422, "tokens"),
        ("/detokenize", {}, 422, "tokens"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    chat: TestClient, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    error = post(chat, path, status, **body)["error"]
    assert (error["param"], error["message"].startswith(param)) == (param, True)


def test_a_model_without_a_template(client: TestClient) -> None:
    error = post(client, "/tokenize", 400, messages=[{"role": "user", "content": "x"}])["error"]
    assert error["code"] == "no_chat_template"
