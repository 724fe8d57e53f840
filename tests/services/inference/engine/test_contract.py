"""What a client sees with either engine: each test runs with ours, and with vLLM under `make vllm`."""

import importlib.util
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch

from shared.bpe import Tokenizer
from shared.lm import ModelConfig, Transformer, load_model_folder
from tests.services.conftest import Process, save_random_model, wait_until

PROMPT = "Once upon a time"


class Served(NamedTuple):
    """A running service."""

    engine: str
    process: Process
    tokenizer: Tokenizer
    model: Transformer

    def post(self, path: str = "/generate", **body: Any) -> httpx.Response:
        return httpx.post(self.process.url + path, json={"prompt": PROMPT, **body}, timeout=240)

    def choice(self, **body: Any) -> dict[str, Any]:
        response = self.post(**body)
        assert response.status_code == 200, response.text
        return dict(response.json()["choices"][0])

    def metric(self, name: str) -> float:
        return self.process.metric(name)


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with heads of a size that vLLM has, and rows of padding after the tokenizer's ids."""
    path = tmp_path_factory.mktemp("contract") / "model"
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size + 8, context_length=512, d_model=64, num_layers=2, num_heads=2,
        num_kv_heads=2, head_dim=32, d_ff=128, tie_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    return save_random_model(path, config, tokenizer)


@pytest.fixture(scope="module", params=["ownlm", pytest.param("vllm", marks=pytest.mark.vllm)])
def served(request: pytest.FixtureRequest, folder: Path) -> Iterator[Served]:
    settings: dict[str, object] = {
        "engine": request.param,
        "model_dir": folder,
        "max_batch": 4,
        "max_queue": 2,
        "max_choices": 4,
        "shutdown_timeout": 120,  # a stream may take longer than the default on a busy machine
    }
    if request.param == "vllm":
        if importlib.util.find_spec("vllm") is None:
            pytest.skip("vLLM is not installed: make vllm")
        settings |= {"threads": 2, "vllm_args": '{"enforce_eager": true}'}  # torch.compile takes minutes
    else:
        settings |= {"threads": 1}
    process = Process("-m", "services.inference", **settings)
    try:
        process.wait_listening()
        while (state := httpx.get(f"{process.url}/readyz")).status_code != 200:
            assert state.json()["error"]["code"] == "loading", state.text
            time.sleep(0.5)
        loaded = load_model_folder(folder)
        yield Served(request.param, process, loaded.tokenizer, loaded.model.eval())
    finally:
        process.popen.kill()
        process.popen.communicate()


def logprobs_of(served: Served, ids: list[int]) -> torch.Tensor:
    """[len(ids), ids of the tokenizer]: the model's log-probabilities after each token, by torch.

    vLLM's count the rows without a token, as /info says.
    """
    with torch.inference_mode():
        logits = served.model(torch.tensor([ids]))[0].double()
    counted = logits if served.engine == "vllm" else logits[:, : served.tokenizer.vocab_size]
    return counted.log_softmax(-1)[:, : served.tokenizer.vocab_size]


def test_greedy_text_is_the_models_own(served: Served) -> None:
    ids = served.tokenizer.encode(PROMPT)
    for _ in range(12):
        ids.append(int(logprobs_of(served, ids)[-1].argmax()))
    choice = served.choice(temperature=0, max_tokens=12, ignore_eos=True)
    assert choice["tokens"] == ids[-12:]
    assert choice["finish_reason"] == "length"


def test_log_probabilities_are_the_models_own(served: Served) -> None:
    choice = served.choice(temperature=0, max_tokens=3, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    prompt = served.tokenizer.encode(PROMPT)
    ids = [*prompt, *choice["tokens"]]
    expected = logprobs_of(served, ids)
    assert choice["prompt_logprobs"][0] is None
    reported = [*choice["prompt_logprobs"][1:], *choice["logprobs"]]
    for position, entry in enumerate(reported):
        assert entry["id"] == ids[position + 1]
        assert entry["logprob"] == pytest.approx(float(expected[position, ids[position + 1]]), abs=1e-3)
        top = entry["top_logprobs"]
        likeliest = expected[position].argsort(descending=True).tolist()
        assert [one["id"] for one in top] == likeliest[: len(top)]


def test_a_prompt_alone_is_scored_without_an_answer(served: Served) -> None:
    choice = served.choice(max_tokens=0, prompt_logprobs=0)
    assert (choice["tokens"], choice["finish_reason"]) == ([], "length")
    assert len(choice["prompt_logprobs"]) == len(served.tokenizer.encode(PROMPT))


def test_a_seed_gives_its_answer_again_and_choices_have_seeds_of_their_own(served: Served) -> None:
    body = {"max_tokens": 12, "temperature": 1.5, "seed": 7, "ignore_eos": True}
    response = served.post(**body, n=3).json()
    texts = [choice["tokens"] for choice in response["choices"]]
    assert len({tuple(text) for text in texts}) == 3
    again = served.choice(**body | {"seed": response["choice_seeds"][2]})
    assert again["tokens"] == texts[2]
    assert served.choice(**body | {"seed": 8})["tokens"] != texts[0]


def test_no_row_without_a_token_is_ever_sampled(served: Served) -> None:
    choice = served.choice(max_tokens=200, temperature=2, seed=1, ignore_eos=True)
    assert max(choice["tokens"]) < served.tokenizer.vocab_size
    assert len(choice["tokens"]) == 200


def test_what_ends_a_choice(served: Served) -> None:
    free = served.choice(temperature=0, max_tokens=12, ignore_eos=True)
    token = free["tokens"][3]
    first = free["tokens"].index(token)
    ended = served.choice(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[token])
    assert (ended["tokens"], ended["finish_reason"], ended["stop_reason"]) == (
        free["tokens"][: first + 1], "stop", token,
    )  # fmt: skip
    later = served.choice(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[token], min_tokens=first + 2)
    assert token not in later["tokens"][: first + 1]
    stop = served.tokenizer.decode(free["tokens"][5:7])
    by_text = served.choice(temperature=0, max_tokens=12, ignore_eos=True, stop=[stop])
    assert by_text["finish_reason"] == "stop"
    assert stop not in by_text["text"]
    eos = served.tokenizer.end_of_text_id
    at_eos = served.choice(max_tokens=12, logit_bias={str(eos): 100})
    assert (at_eos["text"], at_eos["finish_reason"]) == ("", "stop")


def test_a_stream_is_the_answer_in_parts(served: Served) -> None:
    body = {"max_tokens": 20, "seed": 3, "ignore_eos": True}
    whole = served.choice(**body)
    url = f"{served.process.url}/generate"
    with httpx.stream("POST", url, json={"prompt": PROMPT, "stream": True, **body}, timeout=240) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    parts = [json.loads(event) for event in events]
    assert [token for part in parts for token in part["choices"][0]["tokens"]] == whole["tokens"]
    assert "".join(part["choices"][0]["text"] for part in parts) == whole["text"]
    assert parts[-1]["usage"]["completion_tokens"] == 20


def test_a_prefix_that_is_cached_is_counted(served: Served) -> None:
    prompt = [*range(256)]  # vLLM's blocks have 128 tokens on a CPU
    first, second = (served.post(prompt=prompt, max_tokens=1, temperature=0).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128
    assert first["choices"][0]["tokens"] == second["choices"][0]["tokens"]


def test_a_client_that_leaves_stops_its_sequence(served: Served) -> None:
    before = served.metric("ownlm_cancelled_requests_total")
    body = {"prompt": PROMPT, "stream": True, "max_tokens": 400, "ignore_eos": True}
    with httpx.stream("POST", f"{served.process.url}/generate", json=body, timeout=240) as response:
        next(response.iter_raw())
    wait_until(lambda: served.metric("ownlm_cancelled_requests_total") == before + 1)
    wait_until(lambda: served.metric("ownlm_running_rows") + served.metric("ownlm_waiting_rows") == 0)
    generated = served.metric("ownlm_engine_generated_tokens_total")
    assert served.choice(max_tokens=1)["finish_reason"]
    assert served.metric("ownlm_engine_generated_tokens_total") <= generated + 2


def test_what_the_engine_does_not_have_is_named_and_refused(served: Served) -> None:
    engine = httpx.get(f"{served.process.url}/info").json()["engine"]
    assert engine["name"] == served.engine
    assert engine["bitwise_isolation"] is (served.engine == "ownlm")
    bodies: dict[str, dict[str, Any]] = {
        "continue_tokens": {"continue_tokens": [5], "max_tokens": 3},
        "temperature": {"temperature": 5, "max_tokens": 3},
        "prompt_logprobs": {"prompt": [5] * 512, "prompt_logprobs": 0, "max_tokens": 0},
    }
    assert set(engine["refused"]) == (set(bodies) if served.engine == "vllm" else set())
    for field, body in bodies.items():
        response = served.post(**body)
        if field in engine["refused"]:
            error = response.json()["error"]
            assert (response.status_code, error["param"], error["code"]) == (400, field, "unsupported_by_engine")
            assert engine["refused"][field] in error["message"]
        else:
            assert response.status_code == 200, response.text


def test_errors_are_those_of_the_api(served: Served) -> None:
    too_long = served.post(max_tokens=600)
    assert (too_long.status_code, too_long.json()["error"]["code"]) == (400, "context_length_exceeded")
    unknown = served.post(no_such_field=1)
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (422, "no_such_field")
    many = served.post("/v1/completions", prompt=[PROMPT] * 7, max_tokens=1)
    assert (many.status_code, many.json()["error"]["code"]) == (400, "too_many_prompts")
    assert served.post("/v1/completions", prompt=[PROMPT] * 6, max_tokens=1).status_code == 200  # four of them wait


def test_the_metrics_have_the_same_names(served: Served) -> None:
    served.choice(max_tokens=2)
    page = httpx.get(f"{served.process.url}/metrics").text
    names = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")}
    wanted = Path(__file__).parents[4] / "docs" / "reference" / "metrics.md"
    for name in ("ownlm_queue_seconds", "ownlm_kv_blocks_used", "ownlm_engine_steps_total"):
        assert name in names
        assert name in wanted.read_text(encoding="utf-8")
    assert any(name.startswith("vllm:") for name in names) is (served.engine == "vllm")
    assert served.metric("ownlm_queue_seconds_count") > 0
    assert served.metric("ownlm_engine_steps_total") > 0
    assert served.metric("ownlm_model_process_resident_memory_bytes") > 0


def test_a_model_process_that_dies_is_replaced(served: Served) -> None:
    import psutil

    body = {"prompt": PROMPT, "stream": True, "max_tokens": 500, "ignore_eos": True}
    children = psutil.Process(served.process.popen.pid).children(recursive=True)
    owner = next(
        child for child in children if "engine.worker" in " ".join(child.cmdline()) or "EngineCor" in child.name()
    )
    with httpx.stream("POST", f"{served.process.url}/generate", json=body, timeout=240) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(owner.pid, signal.SIGKILL)
        try:
            rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]", "it was answered before the process died"
        except httpx.RemoteProtocolError:
            pass
    wait_until(lambda: served.metric("ownlm_engine_restarts_total") == 1)
    wait_until(lambda: httpx.get(f"{served.process.url}/readyz").status_code == 200, timeout=500)
    assert served.choice(max_tokens=2, ignore_eos=True)["finish_reason"] == "length"


def test_a_service_that_is_terminated_finishes_its_stream(served: Served) -> None:
    """The last test: the service has ended afterwards."""
    body = {"prompt": PROMPT, "stream": True, "max_tokens": 400, "ignore_eos": True}
    with httpx.stream("POST", f"{served.process.url}/generate", json=body, timeout=240) as response:
        lines = response.iter_lines()
        next(lines)
        served.process.terminate()
        assert [line for line in lines if line][-1] == "data: [DONE]"
    code, _, _ = served.process.wait_exit()
    assert code == 0
