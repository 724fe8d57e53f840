"""Thousands of requests of all kinds leave nothing behind."""

import gc
import json
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from services.inference.app import create_app
from services.inference.settings import InferenceSettings

KINDS = {
    "RequestHandle",
    "Sequence",
    "Generation",
    "Choice",
    "Delta",
    "StopMatcher",
    "SequenceRequest",
    "TokenEvent",
    "GenerateRequest",
}


def leave(url: str) -> None:
    """Ask for a long answer and close the connection at once or a little later."""
    content = json.dumps({"prompt": "a", "max_tokens": 100, "stream": True, "ignore_eos": True}).encode()
    head = "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}"
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + content)
        connection.recv(10)


def left_over() -> Counter[str]:
    gc.collect()
    kinds = (type(thing) for thing in gc.get_objects())
    return Counter(kind.__name__ for kind in kinds if kind.__name__ in KINDS and kind.__module__.startswith("services"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
def test_2000_requests_leave_nothing_behind(model_dir: Path, serve: Any, metric: Any) -> None:  # B67
    of_other_tests = left_over()  # constants of their modules, where these were collected too
    url = serve(create_app(InferenceSettings(model_dir=model_dir, threads=1, max_queue=100)))

    def batch(client: httpx.Client, size: int) -> Counter[int]:
        def ask(index: int) -> int:
            if index % 3 == 0:
                leave(url)
                return 0
            body = {"prompt": "a", "max_tokens": 5 if index % 3 == 1 else -1}
            return client.post(f"{url}/generate", json=body, timeout=60).status_code

        with ThreadPoolExecutor(8) as pool:
            return Counter(pool.map(ask, range(size)))

    with httpx.Client() as client:
        batch(client, 500)
        before = resident_bytes()
        assert batch(client, 1500) == {0: 500, 200: 500, 422: 500}
    while metric(url, "ownlm_http_requests_in_flight") > 1:  # that of the question itself
        pass
    assert metric(url, "ownlm_running_rows") + metric(url, "ownlm_waiting_rows") == 0
    assert left_over() == of_other_tests
    assert resident_bytes() - before < 16 * 2**20
