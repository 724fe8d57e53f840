"""Full queues, models that are loading, engines that fail: each is reported, and the service continues."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from shared.bpe import Tokenizer

pytestmark = pytest.mark.extended


def post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/generate", json={"prompt": "p", "max_tokens": 20, **body})


def test_more_than_fits_is_refused_at_once_and_the_rest_finishes(scripted: Any, serve: Any, metric: Any) -> None:  # B65
    app, runner = scripted({}, max_queue=8)
    url = serve(app)
    runner.gate.clear()
    with ThreadPoolExecutor(40) as pool:
        answers = [pool.submit(post, url) for _ in range(40)]
        while sum(answer.done() for answer in answers) < 28:
            time.sleep(0.01)
        assert metric(url, "ownlm_running_rows") + metric(url, "ownlm_waiting_rows") == 12
        runner.gate.set()
        responses = [answer.result() for answer in answers]
    assert sorted(response.status_code for response in responses) == [200] * 12 + [429] * 28
    refused = next(response for response in responses if response.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert metric(url, 'ownlm_refused_requests_total{reason="queue_full"}') == 28
    assert post(url).status_code == 200


@pytest.mark.parametrize("prompt", ["p", "p" * 9000], ids=["short", "long"])
def test_choices_of_one_request_are_queued_together_or_not_at_all(
    scripted: Any, serve: Any, metric: Any, monkeypatch: pytest.MonkeyPatch, prompt: str
) -> None:
    """A long prompt is not even encoded where there is no room for its choices."""
    app, runner = scripted({}, max_queue=4)
    url = serve(app)
    runner.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, url, n=6)
        while metric(url, "ownlm_running_rows") + metric(url, "ownlm_waiting_rows") < 6:
            time.sleep(0.01)
        with monkeypatch.context() as patch:
            if len(prompt) > 1:
                patch.setattr(Tokenizer, "encode", lambda *_, **__: pytest.fail("it was encoded"))
            assert post(url, n=3, prompt=prompt).status_code == 429
        assert metric(url, "ownlm_waiting_rows") <= 6
        runner.gate.set()
        assert len(first.result().json()["choices"]) == 6


def test_not_ready_while_loading_and_alive_all_the_time(scripted: Any, serve: Any) -> None:  # B66
    may_load = threading.Event()
    app, _ = scripted({}, may_load=may_load)
    url = serve(app, wait=False)
    assert httpx.get(f"{url}/livez").status_code == 200
    for response in (httpx.get(f"{url}/readyz"), post(url), httpx.get(f"{url}/info")):
        assert (response.status_code, response.json()["error"]["code"]) == (503, "loading")
    may_load.set()
    while httpx.get(f"{url}/readyz").status_code != 200:
        time.sleep(0.01)
    assert post(url).status_code == 200


@pytest.mark.parametrize("error", [RuntimeError("a kernel failed"), MemoryError("4 GiB"), MemoryError()])
def test_one_failure_is_reported_and_survived(scripted: Any, serve: Any, metric: Any, error: Exception) -> None:  # B74
    app, runner = scripted({})
    url = serve(app)
    runner.failures = [error]
    failed = post(url)
    assert failed.status_code == 500
    cause = f"{type(error).__name__}: {error}".rstrip(": ")
    assert failed.json()["error"]["message"] == f"generation failed: {cause}"
    assert metric(url, "ownlm_failed_requests_total") == 1
    assert metric(url, "ownlm_cancelled_requests_total") == 0
    assert post(url).json()["choices"][0]["text"] == "x" * 20
    assert httpx.get(f"{url}/readyz").status_code == 200


def test_an_engine_that_fails_again_and_again_is_started_anew(scripted: Any, serve: Any, metric: Any) -> None:  # B74
    app, runner = scripted({})
    url = serve(app)
    # Each request's step, and the token after it that asks whether the request was to blame.
    runner.failures = [RuntimeError("the device is gone")] * 6
    runner.may_start.clear()
    assert {post(url).status_code for _ in range(3)} == {500}
    while httpx.get(f"{url}/readyz").status_code == 200:  # its end is seen a moment after its last answer
        time.sleep(0.01)
    for response in (httpx.get(f"{url}/readyz"), post(url)):
        assert (response.status_code, response.json()["error"]["code"]) == (503, "restarting")
        assert int(response.headers["retry-after"]) >= 1
        assert "RuntimeError: the device is gone" in response.json()["error"]["message"]
    assert httpx.get(f"{url}/livez").status_code == 200
    runner.may_start.set()
    while httpx.get(f"{url}/readyz").status_code != 200:
        time.sleep(0.05)
    assert post(url).json()["choices"][0]["text"] == "x" * 20
    assert metric(url, "ownlm_engine_restarts_total") == 1


def test_a_sequence_without_a_distribution_fails_alone(scripted: Any, serve: Any) -> None:  # B48
    app, runner = scripted({"sick": ["a", -1]})
    url = serve(app)
    runner.seconds = 0.01
    with ThreadPoolExecutor(2) as pool:
        healthy = pool.submit(post, url, max_tokens=100)
        assert post(url, prompt="sick", n=3).status_code == 500
        assert httpx.get(f"{url}/readyz").status_code == 200
        assert healthy.result().json()["choices"][0]["text"] == "x" * 100
