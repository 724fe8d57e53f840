"""A client that disconnects stops its generation, in every state."""

import json
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.services.conftest import wait_until

Start = Callable[..., tuple[str, Any]]

STEP_SECONDS, MANY = 0.05, 9000
LONGEST = STEP_SECONDS * MANY  # a request takes at least this long unless it is canceled


@pytest.fixture
def start(scripted: Any, serve: Any) -> Start:
    def run(scripts: Any = None, client_timeout: float = 600.0, **settings: Any) -> tuple[str, Any]:
        app, runner = scripted(scripts or {}, **settings)
        runner.seconds = STEP_SECONDS
        return serve(app, client_timeout=client_timeout), runner

    return run


def send(url: str, **body: Any) -> socket.socket:
    """Send a request and keep the connection, as a client that has not read anything yet."""
    connection = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))
    content = json.dumps(body).encode()
    head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(b"POST /generate HTTP/1.1\r\n" + head.encode() + content)
    return connection


def wait_rows(metric: Callable[[str, str], float], url: str, *, running: int, waiting: int = 0) -> None:
    wait_until(
        lambda: (metric(url, "ownlm_running_rows"), metric(url, "ownlm_waiting_rows")) == (running, waiting),
        timeout=LONGEST / 2,
    )


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("half", [True, False])
def test_closing_the_connection_frees_the_slot(start: Start, metric: Any, stream: bool, half: bool) -> None:  # B34, B35
    url, _ = start(max_batch=1)
    connection = send(url, prompt="p", max_tokens=MANY, stream=stream)
    wait_rows(metric, url, running=1)
    if stream:
        connection.recv(4096)
    if half:
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.close()
    wait_rows(metric, url, running=0)
    wait_until(lambda: metric(url, "ownlm_cancelled_requests_total") == 1)
    answer = httpx.post(f"{url}/generate", json={"prompt": "p", "max_tokens": 2})
    assert answer.json()["choices"][0]["text"] == "xx"
    connection.close()


def test_leaving_the_queue(start: Start, metric: Any) -> None:
    url, _ = start(max_batch=1)
    first = send(url, prompt="p", max_tokens=MANY)
    wait_rows(metric, url, running=1)
    queued = [send(url, prompt="p", max_tokens=MANY, stream=stream) for stream in (True, False)]
    wait_rows(metric, url, running=1, waiting=2)
    for connection in queued:
        connection.close()
    wait_rows(metric, url, running=1)
    first.close()
    wait_rows(metric, url, running=0)


def test_leaving_during_the_prompt_stops_within_a_chunk(start: Start, metric: Any) -> None:  # B35
    url, runner = start(prefill_tokens=1)
    connection = send(url, prompt="p" * MANY, max_tokens=1)
    wait_rows(metric, url, running=1)
    connection.close()
    wait_rows(metric, url, running=0)
    assert len(runner.steps) < MANY


def test_one_of_several_choices_ends_alone(start: Start, metric: Any) -> None:
    url, runner = start({"p": ["H", "i", "Z"]})
    answer = httpx.post(f"{url}/generate", json={"prompt": "p", "n": 3, "stop": "Z", "max_tokens": MANY}).json()
    assert [choice["text"] for choice in answer["choices"]] == ["Hi"] * 3
    wait_rows(metric, url, running=0)
    assert len(runner.steps) < MANY


def test_the_server_disconnects_a_reader_that_stalls(start: Start, metric: Any) -> None:  # B34
    url, runner = start(client_timeout=0.5)
    runner.seconds = 0.0
    connection = send(url, prompt="p", max_tokens=9000, logprobs=None, stream=True, n=4)
    wait_rows(metric, url, running=4)
    # 36,000 events are more than the sockets' buffers hold, and the client reads none.
    wait_until(lambda: metric(url, "ownlm_http_requests_in_flight") == 1)
    wait_rows(metric, url, running=0)
    connection.close()


@pytest.mark.case("D24")
def test_every_sequence_that_got_a_slot_counts_as_one_that_waited(scripted: Any, serve: Any, metric: Any) -> None:
    app, runner = scripted({}, max_batch=3)
    url = serve(app)
    httpx.post(f"{url}/generate", json={"prompt": "p", "max_tokens": 2, "n": 3})
    assert metric(url, "ownlm_queue_seconds_count") == 3
    begun = runner.num_begun
    runner.gate.clear()  # two sequences get their slots, and their client disconnects before the step ends
    connection = send(url, prompt="p", max_tokens=2, n=2)
    wait_until(lambda: runner.num_begun > begun)
    connection.close()
    wait_until(lambda: metric(url, "ownlm_cancelled_requests_total") == 1)
    assert metric(url, "ownlm_queue_seconds_count") == 3
    runner.gate.set()
    wait_until(lambda: metric(url, "ownlm_queue_seconds_count") == 5)
    assert metric(url, "ownlm_queue_seconds_sum") < 240
