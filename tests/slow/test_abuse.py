"""Bodies that no client should send to the inference service, beside one that is served all the while.

What many bad clients at once do is in test_storm.py, and huge bodies at the tokenizer service in test_bodies.py.
Figures are printed: `pytest -m slow -s tests/slow/test_abuse.py`.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.slow.bodies import chunked, peak_memory, reset_peak, send

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT, HUGE = 1_000_000, 300_000_000
PIECE = b"x" * 65_000
ROUTES = ("/generate", "/v1/completions")
STORY = {"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": True, "seed": 3}

# Values of `prompt` and of other fields, as they stand in the body, and the status that they get.
PROMPTS = {
    "NaN": 422,
    "-Infinity": 422,
    "1e999": 422,
    '"\\ud800"': 422,
    '"\\udc00\\ud800"': 422,
    "[-1]": 422,
    "[1, -9223372036854775809]": 422,
    "[9223372036854775807]": 400,
    "[9223372036854775808]": 400,
    "[" + "1" * 4300 + "]": 400,
    "[" + "1" * 4301 + "]": 422,  # more digits than are read
    "[1.5]": 422,
    "[1.0]": 422,
    "[true]": 422,
    '[1, "1"]': 422,
    "[null]": 422,
    "[NaN]": 422,
    "{}": 422,
    "[" * 100_000 + "]" * 100_000: 422,
    "[" * 100_000: 422,
    '{"a":' * 100_000: 422,
    '"' + "a" * 900_000 + '"': 400,
    "[" + "1," * 400_000 + "1]": 400,
}
FIELDS = {
    '"temperature": NaN': 422,
    '"temperature": Infinity': 422,
    '"temperature": -1e-300': 422,
    '"top_p": -Infinity': 422,
    '"top_p": 1.0000001': 422,
    '"repetition_penalty": 1e-320, "temperature": NaN': 422,
    '"logit_bias": {"1": NaN}': 422,
    '"logit_bias": {"-1": 1}': 422,
    '"logit_bias": {"9223372036854775808": 1}': 422,
    '"stop_token_ids": [-1]': 422,
    '"stop_token_ids": [9223372036854775808]': 400,
    '"stop": "\\ud800"': 422,
    '"stop": ["a", "\\udfff"]': 422,
    '"stop": [""]': 422,
    '"seed": -1': 422,
    '"seed": 9223372036854775808': 422,
    '"seed": 1e400': 422,
    '"max_tokens": 9223372036854775808': 400,
    '"max_tokens": -1': 422,
    '"max_tokens": 2.5': 422,
    '"n": 1000000': 400,
    '"n": 0': 422,
    '"top_k": -2': 422,
    '"\\ud800": 1': 422,
    '"__proto__": {}': 422,
}


class Service:
    """The service, and what it costs."""

    def __init__(self, running: Any) -> None:
        threading.Thread(target=running.popen.stdout.read, daemon=True).start()
        self.url: str = running.url
        self.pid: int = running.popen.pid

    def assert_idle(self) -> None:
        page = httpx.get(f"{self.url}/metrics", timeout=60).text.splitlines()
        held = ("ownlm_running_rows", "ownlm_waiting_rows", "ownlm_kv_blocks_used")
        assert {f"{name} 0.0" for name in held} | {"ownlm_http_requests_in_flight 1.0"} <= set(page)
        assert "ownlm_engine_restarts_total 0.0" in page


@pytest.fixture(scope="module")
def service(model_dir: Path) -> Iterator[Service]:
    from tests.services.conftest import Process

    running = Process("-m", "services.inference", model_dir=model_dir, threads=1, max_body_bytes=LIMIT).wait_ready()
    yield Service(running)
    running.terminate()
    assert running.popen.wait(30) == 0
    assert running.popen.communicate()[1] == ""


@pytest.fixture
def beside(service: Service) -> Iterator[list[float]]:
    """A client that is served meanwhile, and always the same; gives the seconds of its answers."""
    seconds: list[float] = []
    answers: set[str] = set()
    done = threading.Event()

    def serve() -> None:
        with httpx.Client(timeout=60) as client:
            while not done.is_set():
                started = time.monotonic()
                answers.add(json.dumps(client.post(f"{service.url}/generate", json=STORY).json()["choices"]))
                seconds.append(time.monotonic() - started)

    thread = threading.Thread(target=serve)
    thread.start()
    yield seconds
    done.set()
    thread.join()
    assert len(answers) == 1
    print(f"\nbeside: {len(seconds)} requests served, the slowest in {max(seconds) * 1e3:.0f} ms")
    service.assert_idle()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.usefixtures("beside")
def test_values_that_no_field_has(service: Service, route: str) -> None:
    """NaN, Infinity, lone surrogates, ids of -1 and 2^63, 100,000 levels: a 4xx that says where, streamed or not."""
    bodies = {f'{{"prompt": {value}, "max_tokens": 1': status for value, status in PROMPTS.items()}
    bodies |= {f'{{"prompt": "a", {field}': status for field, status in FIELDS.items()}
    wrong = []
    slowest = 0.0
    with httpx.Client(timeout=60, headers={"Content-Type": "application/json"}) as client:
        for body, expected in bodies.items():
            for end in ("}", ', "stream": true}'):
                started = time.monotonic()
                answer = client.post(f"{service.url}{route}", content=body + end)
                slowest = max(slowest, time.monotonic() - started)
                error = answer.json()["error"] if answer.is_error else {}
                if answer.status_code != expected or not error.get("message") or len(error["message"]) > 1000:
                    wrong.append((body[:60] + end, answer.status_code, expected, answer.text[:200]))
    print(f"\n{2 * len(bodies)} bodies at {route}, the slowest in {slowest * 1e3:.0f} ms")
    assert not wrong, "\n".join(map(str, wrong))


def test_bodies_of_300_megabytes(service: Service, beside: list[float]) -> None:
    """B69: announced, in chunks without a length, and one that is longer than it says."""

    def send_huge(headers: str, pieces: Iterable[bytes]) -> bytes:
        return send(port, "/generate", headers, pieces)[:12]

    port = int(service.url.rsplit(":", 1)[1])
    whole = [PIECE] * (HUGE // len(PIECE))
    while not beside:
        time.sleep(0.01)
    reset_peak(service.pid)
    before = peak_memory(service.pid)
    started = time.monotonic()
    assert send_huge(f"Content-Length: {HUGE}\r\n", whole) == b"HTTP/1.1 413"
    assert send_huge("Transfer-Encoding: chunked\r\n", chunked(PIECE, HUGE)) == b"HTTP/1.1 413"
    assert send_huge("Content-Length: 10\r\n", whole) in (b"HTTP/1.1 422", b"HTTP/1.1 400")
    rise = peak_memory(service.pid) - before
    print(f"\nthree bodies of 300 MB: {time.monotonic() - started:.1f} s, {rise / 1e6:.1f} MB more memory")
    assert rise < 2 * LIMIT + 8_000_000  # and what the client beside it takes
