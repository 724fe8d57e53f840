"""What waits or runs too long ends, and says why."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.services.conftest import cut_off, wait_until

pytestmark = pytest.mark.extended

PATHS = ("/generate", "/v1/completions")


def post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(url, json={"prompt": "p", **body})


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_waits_too_long_gets_503_and_retry_after(scripted: Any, serve: Any, stream: bool) -> None:
    app, runner = scripted({}, max_batch=1)
    url = serve(app)
    with ThreadPoolExecutor(3) as pool:
        runner.gate.clear()
        running = pool.submit(post, f"{url}/generate", max_tokens=300)
        wait_until(lambda: "ownlm_waiting_rows 1.0" in httpx.get(f"{url}/metrics").text)
        app.state.lifecycle.resource.engine._requests._queue_timeout = 0.3  # for those that come now
        for response in pool.map(lambda path: post(f"{url}{path}", max_tokens=1, stream=stream), PATHS):
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert response.json()["error"]["code"] == "queue_timeout"
        runner.gate.set()
        assert running.result().status_code == 200


def stream(url: str) -> bytes:
    """The stream of an answer that takes too long."""
    with httpx.stream("POST", url, json={"prompt": "p", "stream": True, "max_tokens": 9000}, timeout=240) as response:
        assert response.status_code == 200
        return cut_off(response)


@pytest.mark.case("D25")
def test_what_runs_too_long_ends(scripted: Any, serve: Any) -> None:
    app, runner = scripted({}, request_timeout=2)
    url = serve(app)
    runner.seconds = 0.01
    with ThreadPoolExecutor(4) as pool:
        whole = [pool.submit(post, f"{url}{path}", max_tokens=9000) for path in PATHS]
        streams = [pool.submit(stream, f"{url}{path}") for path in PATHS]
    for answer in whole:
        response = answer.result()
        assert (response.status_code, response.json()["error"]["code"]) == (504, "request_timeout")
    for answer in streams:
        *_, last, rest = answer.result().split(b"\n\n")
        assert b'"code":"request_timeout"' in last
        assert rest == b""
    assert post(f"{url}/generate", max_tokens=2).json()["choices"][0]["text"] == "xx"
