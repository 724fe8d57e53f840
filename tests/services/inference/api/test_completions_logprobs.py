"""Log-probabilities in OpenAI's legacy format, against the model run by torch in one piece."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from shared.bpe import Tokenizer
from shared.lm import load_model_folder

CONTEXT = 128
TEXT = "Once upon a time there was a little fox"


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> Any:
    """Log-probabilities of all tokens that may follow each one of a sequence."""
    model = load_model_folder(model_dir).model

    def run(ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.tensor([ids]))[0].double().log_softmax(-1)

    return run


def spell(tokenizer: Tokenizer, token: int) -> str:
    try:
        return tokenizer.token_bytes(token).decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in tokenizer.token_bytes(token))


@pytest.mark.parametrize("max_tokens", [0, 1, 5])  # lm-evaluation-harness asks for 1 and leaves the last one out
@pytest.mark.parametrize("as_ids", [True, False])
def test_echo_scores_the_prompt(
    complete: Any, tokenizer: Tokenizer, reference: Any, max_tokens: int, as_ids: bool
) -> None:
    ids = tokenizer.encode(TEXT)
    prompt = ids if as_ids else TEXT
    answer = complete(prompt=prompt, echo=True, logprobs=3, max_tokens=max_tokens, temperature=0, ignore_eos=True)
    [choice] = answer["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith(TEXT)
    assert {len(entries) for entries in logprobs.values()} == {len(ids) + max_tokens}
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert answer["usage"]["completion_tokens"] == max_tokens
    scores = reference(ids)
    for index, token in enumerate(ids[1:]):
        assert logprobs["token_logprobs"][index + 1] == pytest.approx(float(scores[index, token]), abs=1e-4)
        likeliest = {spell(tokenizer, int(top)) for top in scores[index].topk(3).indices}
        assert logprobs["top_logprobs"][index + 1].keys() == likeliest | {spell(tokenizer, token)}
    for text, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not text.startswith("bytes:"):
            assert choice["text"][offset : offset + len(text)] == text


def test_generated_tokens_alone(complete: Any, tokenizer: Tokenizer, reference: Any) -> None:
    body = {"prompt": TEXT, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    [choice] = complete(**body, logprobs=0)["choices"]
    assert len(choice["logprobs"]["token_logprobs"]) == 6
    assert choice["logprobs"]["top_logprobs"] is None
    assert choice["logprobs"]["text_offset"][0] == 0
    with_top = complete(**body, logprobs=2)["choices"][0]["logprobs"]
    assert with_top["token_logprobs"] == choice["logprobs"]["token_logprobs"]
    for chosen, top in zip(with_top["token_logprobs"], with_top["top_logprobs"], strict=True):
        assert chosen == max(top.values()), "the most likely was taken"


def test_streamed_entries_add_up(complete: Any, chunks: Any) -> None:
    body = {"prompt": [TEXT, "fox"], "echo": True, "logprobs": 2, "max_tokens": 6, "seed": 1, "ignore_eos": True}
    answer = complete(**body)
    frames = chunks(**body)
    for choice in answer["choices"]:
        parts = [frame["choices"][0] for frame in frames if frame["choices"][0]["index"] == choice["index"]]
        for name, entries in choice["logprobs"].items():
            assert [entry for part in parts for entry in part["logprobs"][name]] == entries


def test_a_prompt_that_fills_the_context_can_be_scored(complete: Any, client: TestClient, reference: Any) -> None:
    ids = [65 + index % 20 for index in range(CONTEXT)]
    logprobs = complete(prompt=ids, echo=True, logprobs=1, max_tokens=0)["choices"][0]["logprobs"]
    scores = reference(ids)
    expected = [float(scores[index, token]) for index, token in enumerate(ids[1:])]
    assert logprobs["token_logprobs"][1:] == pytest.approx(expected, abs=1e-4)
    for body in ({"max_tokens": 1}, {}, {"prompt": [*ids, 65], "max_tokens": 0}):
        response = client.post("/v1/completions", json={"prompt": ids, "echo": True, "logprobs": 1, **body})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_generate_reports_the_prompts_too(client: TestClient, complete: Any, tokenizer: Tokenizer) -> None:
    body = {"prompt": TEXT, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    answer = client.post("/generate", json={**body, "prompt_logprobs": 2, "logprobs": 2}).json()
    entries = answer["choices"][0]["prompt_logprobs"]
    assert entries[0] is None
    assert [entry["id"] for entry in entries[1:]] == tokenizer.encode(TEXT)[1:]
    legacy = complete(**body, echo=True, logprobs=2)["choices"][0]["logprobs"]["token_logprobs"]
    assert [entry["logprob"] for entry in (*entries[1:], *answer["choices"][0]["logprobs"])] == legacy[1:]
    scored = client.post("/generate", json={"prompt": TEXT, "max_tokens": 0, "prompt_logprobs": 2}).json()
    assert scored["choices"][0]["prompt_logprobs"] == entries
    assert (scored["choices"][0]["finish_reason"], scored["usage"]["completion_tokens"]) == ("length", 0)


def test_what_a_stop_string_cuts_off_is_gone_everywhere(complete: Any, client: TestClient) -> None:
    body = {"prompt": TEXT, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    whole = complete(**body)["choices"][0]
    stop = whole["text"][6:9]
    end = whole["text"].find(stop)
    kept = sum(offset < end for offset in whole["logprobs"]["text_offset"])
    [choice] = complete(**body, stop=stop)["choices"]
    assert choice["text"] == whole["text"][:end]
    assert {name: entries[:kept] for name, entries in whole["logprobs"].items()} == choice["logprobs"]
    for stream in (False, True):
        response = client.post("/generate", json={**body, "stop": stop, "stream": stream})
        assert response.status_code == 200


@pytest.mark.case("D37")
@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_a_prompt_of_one_token_is_scored_too(
    client: TestClient, complete: Any, chunks: Any, tokenizer: Tokenizer, max_tokens: int
) -> None:
    """There is nothing that predicts its one token: null, as for the first token of any prompt."""
    body = {"prompt": "f", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    assert len(tokenizer.encode("f")) == 1
    answer = client.post("/generate", json={**body, "prompt_logprobs": 0}).json()["choices"][0]
    assert answer["prompt_logprobs"] == [None]
    frames = client.post("/generate", json={**body, "prompt_logprobs": 0, "stream": True}).text.split("\n\n")[:-2]
    parts = [json.loads(frame.removeprefix("data: "))["choices"][0] for frame in frames]
    assert [part["prompt_logprobs"] for part in parts if "prompt_logprobs" in part] == [[None]]

    [choice] = complete(**body, echo=True, logprobs=1)["choices"]
    logprobs = choice["logprobs"]
    assert {len(entries) for entries in logprobs.values()} == {1 + max_tokens}
    assert [logprobs[name][0] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [
        "f", None, None, 0,
    ]  # fmt: skip
    parts = [frame["choices"][0] for frame in chunks(**body, echo=True, logprobs=1)]
    for name, entries in logprobs.items():
        assert [entry for part in parts for entry in part["logprobs"][name]] == entries
