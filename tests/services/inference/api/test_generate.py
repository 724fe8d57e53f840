"""The contract of /generate, on a tiny random model."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from shared.bpe import Tokenizer
from shared.lm import SamplingParams, generate, load_model_folder

CONTEXT = 128
JSON = {"Content-Type": "application/json"}


def ask(client: TestClient, **body: Any) -> Any:
    response = client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refusal(client: TestClient, **body: Any) -> tuple[int, Any]:
    """The status and the error; the next request must work."""
    response = client.post("/generate", json=body)
    assert 400 <= response.status_code < 500, response.text
    assert ask(client, prompt="a", max_tokens=1)["usage"]["completion_tokens"] == 1
    return response.status_code, response.json()["error"]


def test_greedy_tokens_equal_those_of_the_model_alone(client: TestClient, model_dir: Path) -> None:
    folder = load_model_folder(model_dir)
    for prompt in ("a", "Once upon a time there was", "fox " * 20):
        ids = folder.tokenizer.encode(prompt)
        alone = list(generate(folder.model, ids, SamplingParams(temperature=0), max_tokens=20))
        answer = ask(client, prompt=prompt, max_tokens=20, temperature=0, ignore_eos=True)
        assert answer["choices"][0]["tokens"] == alone
        assert answer["choices"][0]["text"] == folder.tokenizer.decode(alone, skip_special_tokens=True)
        assert ask(client, prompt=ids, max_tokens=20, temperature=0, ignore_eos=True)["choices"] == answer["choices"]


def test_the_answer_has_the_documented_shape(client: TestClient, tokenizer: Tokenizer) -> None:
    answer = ask(client, prompt="Once upon", max_tokens=3, seed=1, ignore_eos=True)
    assert answer.keys() == {"id", "model", "choices", "usage", "seed", "choice_seeds", "fingerprint"}
    assert answer["choice_seeds"] == [1]
    assert (answer["model"], answer["seed"], answer["fingerprint"]) == ("tiny", 1, tokenizer.fingerprint)
    prompt_tokens = len(tokenizer.encode("Once upon"))
    assert answer["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 3,
        "total_tokens": prompt_tokens + 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    [choice] = answer["choices"]
    assert choice.keys() == {"index", "text", "tokens", "logprobs", "finish_reason", "stop_reason"}
    assert (choice["finish_reason"], choice["stop_reason"], choice["logprobs"]) == ("length", None, None)


def test_seeds_repeat_and_differ(client: TestClient) -> None:  # B50
    def texts(**body: Any) -> list[list[int]]:
        answer = ask(client, prompt="a", max_tokens=8, temperature=1.5, **body)
        return [choice["tokens"] for choice in answer["choices"]]

    four = texts(seed=7, n=4)
    assert texts(seed=7, n=4) == four
    assert texts(seed=7) == four[:1]
    assert len({tuple(tokens) for tokens in four}) > 1
    by_seed = [texts(seed=seed)[0] for seed in range(1, 6)]
    assert len({tuple(tokens) for tokens in by_seed}) == 5
    first = ask(client, prompt="a", max_tokens=8)
    again = ask(client, prompt="a", max_tokens=8, seed=first["seed"])
    assert again["choices"] == first["choices"]


@pytest.mark.parametrize("seed", [0, 2**31, 2**63 - 1])
def test_seeds_in_range_repeat(client: TestClient, seed: int) -> None:  # B49
    first = ask(client, prompt="a", max_tokens=5, seed=seed)
    assert first["seed"] == seed
    assert ask(client, prompt="a", max_tokens=5, seed=seed)["choices"] == first["choices"]


def test_logprobs_are_those_of_the_model(client: TestClient, model_dir: Path) -> None:  # B54
    answer = ask(client, prompt="Once upon", max_tokens=5, logprobs=5, top_k=1, ignore_eos=True)
    [choice] = answer["choices"]
    assert len(choice["logprobs"]) == 5
    folder = load_model_folder(model_dir)
    ids = folder.tokenizer.encode("Once upon")
    for entry in choice["logprobs"]:
        with torch.inference_mode():
            expected = folder.model(torch.tensor([ids]))[0, -1].double().log_softmax(-1)
        assert entry["logprob"] == pytest.approx(float(expected[entry["id"]]), abs=1e-4)
        assert [top["id"] for top in entry["top_logprobs"]] == expected.topk(5).indices.tolist()
        assert bytes(entry["bytes"]) == folder.tokenizer.token_bytes(entry["id"])
        ids.append(entry["id"])


def test_echo_puts_the_prompt_first(client: TestClient, tokenizer: Tokenizer) -> None:
    plain = ask(client, prompt="Once", max_tokens=4, seed=3)["choices"][0]
    for prompt in ("Once", tokenizer.encode("Once")):
        echoed = ask(client, prompt=prompt, max_tokens=4, seed=3, echo=True)["choices"][0]
        assert echoed == {**plain, "text": "Once" + plain["text"]}


def test_no_tokens_is_an_empty_answer(client: TestClient) -> None:  # B56
    for echo, text in ((False, ""), (True, "Once")):
        answer = ask(client, prompt="Once", max_tokens=0, echo=echo, n=2)
        assert [choice["text"] for choice in answer["choices"]] == [text, text]
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
        assert answer["usage"]["completion_tokens"] == 0
        stream = client.post("/generate", json={"prompt": "Once", "max_tokens": 0, "echo": echo, "stream": True}).text
        frames = stream.strip().split("\n\n")
        assert json.loads(frames[0].removeprefix("data: "))["choices"][0]["text"] == text
        assert frames[1:] == ["data: [DONE]"]


def test_the_answer_ends_with_the_context(client: TestClient, tokenizer: Tokenizer) -> None:  # B62
    prompt_tokens = len(tokenizer.encode("fox fox"))
    for body in ({}, {"max_tokens": None}, {"max_tokens": CONTEXT - prompt_tokens}):
        answer = ask(client, prompt="fox fox", ignore_eos=True, **body)
        assert answer["usage"]["total_tokens"] == CONTEXT
        assert answer["choices"][0]["finish_reason"] == "length"
    status, error = refusal(client, prompt="fox fox", max_tokens=CONTEXT - prompt_tokens + 1)
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "max_tokens")


@pytest.mark.parametrize("times", [1, 10, 100])
def test_prompts_beyond_the_context_are_refused(client: TestClient, times: int) -> None:  # B55
    for prompt in ("~" * CONTEXT * times, [126] * CONTEXT * times):
        status, error = refusal(client, prompt=prompt)
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert f" tokens exceed the limit of {CONTEXT - 1} (context length {CONTEXT}, shared by" in error["message"]
        if times == 1 or isinstance(prompt, list):
            assert error["message"].startswith(f"prompt: {CONTEXT * times} tokens")


@pytest.mark.parametrize("prompt", ["", []])
def test_nothing_to_start_from_is_refused(client: TestClient, prompt: object) -> None:  # B57
    status, error = refusal(client, prompt=prompt)
    assert (status, error["code"]) == (400, "empty_prompt")


def test_special_tokens_in_the_prompt_are_text(client: TestClient, tokenizer: Tokenizer) -> None:  # B17
    text = "hi <|endoftext|> bye"
    answer = ask(client, prompt=text, max_tokens=1)
    assert (
        answer["usage"]["prompt_tokens"]
        == len(tokenizer.encode(text))
        > len(tokenizer.encode(text, allowed_special="all"))
    )


def test_nul_in_prompt_and_stop(client: TestClient) -> None:  # B25
    assert ask(client, prompt="ab\0cd", max_tokens=1, stop=["\0"])["usage"]["prompt_tokens"] == 5


def test_null_means_absent(client: TestClient) -> None:  # B44
    names = "temperature top_p top_k min_p repetition_penalty presence_penalty frequency_penalty"
    names += " stop n logprobs stream echo ignore_eos"
    plain = ask(client, prompt="a", max_tokens=5, seed=1)["choices"]
    assert ask(client, prompt="a", max_tokens=5, seed=1, **dict.fromkeys(names.split()))["choices"] == plain
    assert ask(client, prompt="a", max_tokens=5, seed=1, stop=[])["choices"] == plain


@pytest.mark.parametrize("temperature", [0, 1e-9, 1e-300, 1e-5])
def test_tiny_temperatures_are_greedy(client: TestClient, temperature: float) -> None:  # B45
    greedy = ask(client, prompt="a", max_tokens=10, temperature=0)["choices"]
    assert ask(client, prompt="a", max_tokens=10, temperature=temperature)["choices"] == greedy


@pytest.mark.parametrize("settings", [{"top_p": 0}, {"top_k": 1}, {"min_p": 1}])  # B46, B47, B52
def test_settings_that_leave_one_token_are_greedy(client: TestClient, settings: dict[str, Any]) -> None:
    greedy = ask(client, prompt="a", max_tokens=10, temperature=0)["choices"]
    assert ask(client, prompt="a", max_tokens=10, seed=2, **settings)["choices"] == greedy


@pytest.mark.parametrize("top_k", [0, -1, 320, 321, 10**12])
def test_top_k_that_keeps_all_is_off(client: TestClient, top_k: int) -> None:  # B47
    plain = ask(client, prompt="a", max_tokens=5, seed=1)["choices"]
    assert ask(client, prompt="a", max_tokens=5, seed=1, top_k=top_k)["choices"] == plain


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [999999, -1, "1", True, [], 1e999]),  # B53
        ("top_p", [1.0000001, -0.1, -1, 2]),  # B46, B53
        ("top_k", [-2, 1.5, "5", 1e30]),  # B47
        ("min_p", [1.1, -0.1]),  # B52
        ("repetition_penalty", [0, -1, 11]),  # B53
        ("presence_penalty", [2.1, -2.1]),
        ("frequency_penalty", [1e30]),  # B53
        ("seed", [-1, 2**63, 2**64 - 1, 2**64, 1.5, "7", True]),  # B49
        ("n", [0, -1, 9, 129, 10**6]),  # B58
        ("max_tokens", [-1, "5", 2.5, 1e30, 10**9, True]),  # B53, B56, B58, B62
        ("logprobs", [-1, 21, 321, True]),  # B47
        ("prompt", [None, 5, {}, ["a"], ["a", ""], [1, True], [1, "7"], [1.0], [-1], [100_000], [2**70]]),  # B57
        ("stop", [5, {}, "", [""], ["", "x"], ["x", None], list("abcde"), ["x"] * 1000, "x" * 257]),  # B44, B59, B60
        ("stream", ["true", 1]),
        ("stop_token_ids", [[320], [2**70], [-1], [1.5], ["1"], [True], 5, [1] * 65]),  # B61
        ("logit_bias", [{"320": 1}, {"x": 1}, {"-1": 1}, {"05": 1}, {"": 1}, {"5": 101}, {"5": "1"}, [5]]),  # B61
        ("logit_bias", [{"9" * 5000: 1}, {str(token): 0 for token in range(1025)}, {"5": True}]),
        ("min_tokens", [-1, 3, "1", 1.5]),
        ("prompt_logprobs", [-1, 21, True]),
        ("continue_tokens", ["a", 5, [-1], [1.5], ["1"], [True], [320], [2**70], [1, 2, 3], [1] * (2**19 + 1)]),
        ("stream_bytes", ["true", 1]),
        ("suffix", ["x"]),
        ("best_of", [2]),  # B58
    ],
)
def test_wrong_values_are_refused_by_field(client: TestClient, field: str, values: list[Any]) -> None:
    for value in values:
        for stream in (False, True):  # B43: before any event is sent
            body = {"prompt": "a", "max_tokens": 2, "stream": stream, field: value}
            response = client.post("/generate", content=json.dumps(body), headers=JSON)
            assert response.status_code in (400, 422), (field, value, response.text)
            error = response.json()["error"]
            assert error["message"].startswith(field), error
            assert re.split(r"[\[.]", error["param"])[0] == field
    ask(client, prompt="a", max_tokens=1)


def test_refusals_name_the_value_at_fault(client: TestClient) -> None:
    _, error = refusal(client, prompt="a", logit_bias={"5": 1, "x": 1})
    assert error["message"].startswith('logit_bias: the key "x" is not a token id')
    _, error = refusal(client, prompt="a", stop=["x", "y" * 257])
    assert error["message"].startswith("stop[1]: string should have at most 256 characters (got")


LARGEST = 10**4300 - 1  # more digits are not read


@pytest.mark.parametrize(
    "fields",
    [
        *({name: LARGEST} for name in ("n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens")),
        {"prompt": [LARGEST]},
        {"stop_token_ids": [LARGEST]},
        {"allowed_special": ["9" * 4300]},
        {"9" * 4300: 1},
    ],
)
def test_a_long_value_does_not_crowd_out_what_is_wrong_with_it(client: TestClient, fields: dict[str, Any]) -> None:
    _, error = refusal(client, **{"prompt": "a", **fields})
    assert len(error["message"]) < 300
    assert "9" * 110 not in error["message"]


def test_ids_of_the_prompt_that_are_no_tokens_are_refused_by_index(client: TestClient) -> None:  # B23
    _, error = refusal(client, prompt=[65, 66, 100_000])
    assert "2" in error["message"]
    assert "100000" in error["message"].replace(",", "")


def test_penalties_reach_the_sampler(client: TestClient) -> None:  # B51
    plain = ask(client, prompt="a", max_tokens=40, temperature=0, ignore_eos=True)["choices"][0]["tokens"]
    penalised = ask(client, prompt="a", max_tokens=40, temperature=0, ignore_eos=True, repetition_penalty=10)
    assert len(set(penalised["choices"][0]["tokens"])) > len(set(plain))


def test_documented_examples_work(client: TestClient) -> None:
    for example in client.get("/openapi.json").json()["components"]["schemas"]["GenerateRequest"]["examples"]:
        assert client.post("/generate", json=example).status_code == 200


def test_every_documented_error_has_the_envelope(client: TestClient) -> None:
    for methods in client.get("/openapi.json").json()["paths"].values():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if status != "200":
                    schema = response["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/ErrorEnvelope"}
