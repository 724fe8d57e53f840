"""A client that leaves stops its generation, wherever it is."""

import json
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

Start = Callable[..., tuple[str, Any]]


@pytest.fixture
def start(scripted: Any, serve: Any) -> Start:
    def run(**settings: Any) -> tuple[str, Any]:
        app, runner = scripted({}, **settings)
        runner.seconds = 0.01
        return serve(app), runner

    return run


def send(url: str, **body: Any) -> socket.socket:
    """Send a request and keep the connection, as a client that has not read anything yet."""
    connection = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))
    content = json.dumps(body).encode()
    head = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(b"POST /generate HTTP/1.1\r\n" + head.encode() + content)
    return connection


def wait_rows(metric: Callable[[str, str], float], url: str, *, running: int, waiting: int = 0) -> float:
    """Wait for this many rows; returns how long it took."""
    started = time.monotonic()
    while (metric(url, "ownlm_running_rows"), metric(url, "ownlm_waiting_rows")) != (running, waiting):
        assert time.monotonic() - started < 5, "the rows are not as expected"
        time.sleep(0.01)
    return time.monotonic() - started


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("half", [True, False])
def test_closing_the_connection_frees_the_slot(start: Start, metric: Any, stream: bool, half: bool) -> None:  # B34, B35
    url, _ = start(max_batch=1)
    connection = send(url, prompt="p", max_tokens=5000, stream=stream)
    wait_rows(metric, url, running=1)
    if stream:
        connection.recv(4096)
    connection.shutdown(socket.SHUT_WR) if half else connection.close()
    assert wait_rows(metric, url, running=0) < 1
    assert metric(url, "ownlm_cancelled_requests_total") == 1
    answer = httpx.post(f"{url}/generate", json={"prompt": "p", "max_tokens": 2})
    assert answer.json()["choices"][0]["text"] == "xx"
    connection.close()


def test_leaving_the_queue(start: Start, metric: Any) -> None:
    url, _ = start(max_batch=1)
    first = send(url, prompt="p", max_tokens=5000)
    wait_rows(metric, url, running=1)
    queued = [send(url, prompt="p", max_tokens=5000, stream=stream) for stream in (True, False)]
    wait_rows(metric, url, running=1, waiting=2)
    for connection in queued:
        connection.close()
    assert wait_rows(metric, url, running=1) < 1
    first.close()
    wait_rows(metric, url, running=0)


def test_leaving_during_the_prompt_stops_within_a_chunk(start: Start, metric: Any) -> None:  # B35
    url, runner = start(prefill_tokens=10)
    connection = send(url, prompt="p" * 5000, max_tokens=1)
    wait_rows(metric, url, running=1)
    connection.close()
    wait_rows(metric, url, running=0)
    assert len(runner.steps) < 400


def test_one_of_several_choices_ends_alone(scripted: Any, serve: Any, metric: Any) -> None:
    app, runner = scripted({"p": ["H", "i", "Z"]})
    url = serve(app)
    answer = httpx.post(f"{url}/generate", json={"prompt": "p", "n": 3, "stop": "Z", "max_tokens": 50}).json()
    assert [choice["text"] for choice in answer["choices"]] == ["Hi"] * 3
    wait_rows(metric, url, running=0)
    assert len(runner.steps) < 40  # without the stop it would be 50; how soon it is seen depends on the machine


def test_a_reader_that_stalls_is_given_up(start: Start, metric: Any) -> None:  # B34
    url, runner = start(stream_send_timeout=0.5)
    runner.seconds = 0.0
    connection = send(url, prompt="p", max_tokens=9000, logprobs=None, stream=True, n=4)
    wait_rows(metric, url, running=4)
    # 36,000 frames are more than the sockets' buffers hold. Nobody reads them.
    deadline = time.monotonic() + 20
    while metric(url, "ownlm_http_requests_in_flight") > 1:
        assert time.monotonic() < deadline, "the stalled stream is still served"
        time.sleep(0.05)
    wait_rows(metric, url, running=0)
    connection.close()
