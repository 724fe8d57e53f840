"""stories260K with its own SentencePiece vocabulary: text as llama2.c writes it, from every route."""

import json
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

GREEDY = {"temperature": 0, "max_tokens": 40}
TEMPLATE = "{% for message in messages %}{{ message['content'] + eos_token }}{% endfor %}Once upon a time,"


@pytest.fixture(scope="module")
def story(data_dir: Path) -> str:
    """What the model writes without a prompt, computed by other code in float64 (see the data's README)."""
    return (data_dir / "models" / "stories260K" / "greedy_reference.txt").read_text()


@pytest.fixture(scope="module")
def folder(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stories") / "model"
    shutil.copytree(data_dir / "models" / "stories260K" / "hf_converted", folder)
    folder.chmod(0o755)
    Tokenizer.from_files(data_dir / "models" / "stories260K" / "tok512.bin").save(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with ready_client(create_app(InferenceSettings(model_dir=folder, threads=1))) as client:
        yield client


def post(client: TestClient, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_prompt_and_its_continuation_are_the_text(client: TestClient, story: str) -> None:
    for prompt in ("Once", "Once upon a time, there was"):
        [choice] = post(client, "/generate", prompt=prompt, **GREEDY)["choices"]
        assert choice["text"].startswith((" ", "upon"))
        assert story.startswith(prompt + choice["text"])
        [echoed] = post(client, "/v1/completions", prompt=prompt, echo=True, **GREEDY)["choices"]
        assert echoed["text"] == prompt + choice["text"]


@pytest.mark.parametrize("prompt", ["", [1]])
def test_the_space_before_a_text_is_no_part_of_it(client: TestClient, story: str, prompt: str | list[int]) -> None:
    [choice] = post(client, "/v1/completions", prompt=prompt, **GREEDY)["choices"]
    assert story.startswith(choice["text"])
    body = {"prompt": prompt, "stream": True, **GREEDY}
    lines = client.post("/v1/completions", json=body).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events if event["choices"]) == choice["text"]


def test_tokens_of_an_answer_have_their_bytes(client: TestClient) -> None:
    messages = [{"role": "user", "content": "Hi </s> é"}]
    [choice] = post(client, "/v1/chat/completions", messages=messages, logprobs=True, **GREEDY)["choices"]
    spelled = b"".join(bytes(token["bytes"]) for token in choice["logprobs"]["content"])
    assert spelled.decode() == choice["message"]["content"]
    assert choice["message"]["content"].startswith(" ")  # it continues "Once upon a time,"


def test_tokenize_and_detokenize(client: TestClient, folder: Path) -> None:
    tokenizer = Tokenizer.from_files(folder)
    found = post(client, "/tokenize", prompt="One é", return_token_strs=True)
    assert found["tokens"] == tokenizer.encode("One é", add_special_tokens=True)
    assert "".join(found["token_strs"]) == "<s> One é"
    assert post(client, "/detokenize", tokens=found["tokens"][1:])["prompt"] == "One é"
    user = post(client, "/tokenize", messages=[{"role": "user", "content": "</s>"}])["tokens"]
    assert user.count(tokenizer.special_tokens["</s>"]) == 1
