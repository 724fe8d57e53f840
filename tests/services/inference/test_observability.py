"""What the log, the metrics and the refusals of the inference service report of a request."""

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from services.inference.engine import PromptEvent, RequestHandle, TokenEvent
from services.inference.generation import stream as module
from services.inference.generation.stream import RequestTiming
from services.inference.metrics import InferenceMetrics
from shared.http.request_context import RequestContext, current_request
from tests.services.conftest import wait_until

SECRET = "my secret"


def request_line(url: str, logs: list[Any], route: str = "/generate") -> Any:
    """The log line of the one request to a route; it is written when the answer has gone out."""

    def found() -> list[Any]:
        return [entry for entry in logs if entry["event"] == "request" and entry["route"] == route]

    wait_until(lambda: bool(found()))
    [line] = found()
    return line


@pytest.mark.parametrize("stream", [False, True])
def test_the_log_line_has_times_and_tokens_and_never_the_text(scripted: Any, serve: Any, stream: bool) -> None:
    app, _ = scripted({SECRET: ["HI", "DEF", "HI"]})
    with capture_logs() as logs:
        url = serve(app)
        body = {"prompt": SECRET, "max_tokens": 3, "stream": stream}
        response = httpx.post(f"{url}/generate", json=body, headers={"X-Request-ID": "abc-1"})
        line = request_line(url, logs)
    assert "HIDEFHI" in response.text or stream
    assert (line["status"], line["id"]) == (200, "abc-1")
    assert (line["prompt_tokens"], line["completion_tokens"], line["cached_tokens"]) == (len(SECRET), 3, 0)
    assert 0 <= line["first_token_ms"] <= line["first_token_ms"] + line["decode_ms"] <= line["ms"]
    assert SECRET not in str(logs)
    assert "HI" not in str(logs)


def test_the_text_is_logged_where_that_is_asked_for(scripted: Any, serve: Any) -> None:
    app, _ = scripted({SECRET: ["HI", "DEF"]}, log_prompts=True)
    with capture_logs() as logs:
        url = serve(app)
        httpx.post(f"{url}/generate", json={"prompt": SECRET, "max_tokens": 2, "n": 2})
        line = request_line(url, logs)
    assert (line["prompt"], line["answer"]) == ([SECRET], ["HIDEF", "HIDEF"])


def test_a_full_queue_is_reported_before_the_body_is_sent(scripted: Any, serve: Any, metric: Any) -> None:  # B65
    app, runner = scripted({}, max_batch=1, max_queue=0, max_choices=1)
    url = serve(app)
    runner.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(httpx.post, f"{url}/generate", json={"prompt": "a", "max_tokens": 1}, timeout=240)
        while metric(url, "ownlm_running_rows") + metric(url, "ownlm_waiting_rows") < 1:
            time.sleep(0.01)
        address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
        with socket.create_connection(address, timeout=240) as connection, connection.makefile("rb") as received:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n"
            )
            head, _, answer = received.read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1" in head.lower()
        assert json.loads(answer)["error"]["code"] == "queue_full"
        assert 'ownlm_refused_requests_total{reason="queue_full"} 1.0' in httpx.get(f"{url}/metrics").text
        runner.gate.set()
        assert first.result().status_code == 200


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the time that `RequestTiming` and `RequestHandle` read."""
    now = SimpleNamespace(value=100.0)
    monkeypatch.setattr(module.time, "perf_counter", lambda: now.value)
    return lambda value: setattr(now, "value", value)


def test_gaps_are_those_of_each_sequence(clock: Callable[[float], None]) -> None:
    """Two sequences take turns every 10 ms: each one's gaps are 20 ms, and the metrics count no others."""
    metrics = InferenceMetrics(lambda: None)
    context = RequestContext()
    token = current_request.set(context)
    try:
        clock(100.5)
        handle = RequestHandle(2, lambda _index: None)
        timing = RequestTiming(metrics)
        handle.observer = timing.observe
        clock(101.0)
        handle.start(101.0)
        clock(101.2)
        handle.receive(PromptEvent(1, 0, 0))
        for step in range(6):
            clock(101.25 + step * 0.010)
            handle.receive(TokenEvent(1, step % 2, 7, None, "length" if step > 3 else None))
        clock(102.0)
        timing.finish()
        timing.log(handle.started_at)
    finally:
        current_request.reset(token)

    def total(name: str) -> tuple[float, float]:
        sums = {sample.name: sample.value for family in metrics.registry.collect() for sample in family.samples}
        return sums[f"{name}_count"], pytest.approx(sums[f"{name}_sum"])

    assert total("ownlm_time_to_first_token_seconds") == (1, 1.25)
    assert total("ownlm_time_between_tokens_seconds") == (4, 0.080)
    assert total("ownlm_generation_seconds") == (1, 2.0)
    assert context.log_fields == {"queue_ms": 1000.0, "prefill_ms": 200.0, "first_token_ms": 1250.0, "decode_ms": 50.0}


def test_tokens_after_a_stop_string_are_not_measured(clock: Callable[[float], None]) -> None:
    metrics = InferenceMetrics(lambda: None)
    handle = RequestHandle(1, lambda _index: None)
    handle.observer = RequestTiming(metrics).observe
    handle.receive(TokenEvent(1, 0, 7))
    handle.drop(0)
    clock(500.0)
    handle.receive(TokenEvent(1, 0, 7))
    assert metrics.registry.get_sample_value("ownlm_time_between_tokens_seconds_count") == 0


def test_the_page_shows_what_the_engine_counts() -> None:
    from services.inference.engine import EngineStats

    stats = EngineStats(*range(1, len(EngineStats._fields) + 1))
    page = InferenceMetrics(lambda: stats).render().decode()
    for name, value in [
        ("ownlm_waiting_rows", stats.num_waiting),
        ("ownlm_kv_blocks", stats.kv_blocks_total),
        ("ownlm_kv_blocks_used", stats.kv_blocks_used),
        ("ownlm_prefix_tokens_hit_total", stats.prefix_tokens_hit),
        ("ownlm_engine_preemptions_total", stats.preemptions),
        ("ownlm_engine_restarts_total", stats.restarts),
    ]:
        assert f"\n{name} {float(value)}\n" in page
