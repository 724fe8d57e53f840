"""Bodies that no service should read: huge, endless, lying, slow; memory and other clients must not notice."""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.slow.bodies import chunked, peak_memory, reset_peak, send

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT = 8_000_000
HEAD = "POST /encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def piece() -> bytes:
    return b'{"text": "' + b"x" * 65_000


@pytest.fixture
def address(process: Callable[..., Any], model_dir: Path) -> tuple[str, int, int]:
    running = process(
        "-m", "services.tokenizer", model_dir=model_dir, max_body_bytes=LIMIT, client_timeout=3
    ).wait_ready()
    threading.Thread(target=running.popen.stdout.read, daemon=True).start()
    return "127.0.0.1", int(running.url.rsplit(":", 1)[1]), running.popen.pid


def test_bodies_over_the_limit_cost_no_memory(address: tuple[str, int, int], piece: bytes) -> None:  # B69
    _, port, pid = address
    assert send(port, "/encode", "Content-Length: 10\r\n", [b'{"text":1}']).startswith(b"HTTP/1.1 422")
    reset_peak(pid)
    before = peak_memory(pid)
    total = 300_000_000
    started = time.monotonic()
    whole = [piece] * (total // len(piece))
    assert send(port, "/encode", f"Content-Length: {total}\r\n", whole).startswith(b"HTTP/1.1 413")
    assert send(port, "/encode", "Transfer-Encoding: chunked\r\n", chunked(piece, total)).startswith(b"HTTP/1.1 413")
    seconds = time.monotonic() - started
    rise = peak_memory(pid) - before
    print(f"two bodies of 300 MB: {seconds:.1f} s, {rise / 1e6:.1f} MB more memory")
    assert rise < 2 * LIMIT


def test_slow_bodies_end_without_delaying_others(address: tuple[str, int, int]) -> None:
    """200 connections that send a byte now and then, 100 that send nothing; then all are closed by the server."""
    url = f"http://127.0.0.1:{address[1]}"
    slow = [socket.create_connection(address[:2], timeout=30) for _ in range(300)]
    for connection in slow[:200]:
        connection.sendall((HEAD + "Content-Length: 1000\r\n\r\n{").encode())
    longest = 0.0
    with httpx.Client() as client:
        for _ in range(100):
            started = time.monotonic()
            assert client.post(f"{url}/encode", json={"text": "fox"}).status_code == 200
            longest = max(longest, time.monotonic() - started)
        answers = []
        for connection in slow:
            answer = b""
            while data := connection.recv(65536):
                answer += data
            answers.append(answer[:12])
            connection.close()
        assert client.get(f"{url}/livez").status_code == 200
        page = client.get(f"{url}/metrics").text
    print(f"longest answer beside 300 slow connections: {longest * 1000:.0f} ms")
    assert answers == [b"HTTP/1.1 408"] * 200 + [b""] * 100
    assert "ownlm_http_requests_in_flight 1.0" in page
    connections = psutil.Process(address[2]).net_connections("tcp")
    assert sum(connection.status != psutil.CONN_LISTEN for connection in connections) <= 1  # that of `client`
