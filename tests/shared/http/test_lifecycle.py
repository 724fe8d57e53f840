import threading
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient


def wait_for(client: TestClient, status: int, code: str | None = None) -> Any:
    deadline = time.monotonic() + 240
    while True:
        response = client.get("/readyz")
        if response.status_code == status and (code is None or response.json()["error"]["code"] == code):
            return response
        assert time.monotonic() < deadline, response.text
        time.sleep(0.01)


def test_loading_then_ready(build: Any, gate: threading.Event) -> None:
    def load() -> str:
        gate.wait()
        return "loaded"

    with TestClient(build(load)) as client:
        assert client.get("/readyz").status_code == client.head("/readyz").status_code == 503
        loading = client.get("/items/a")
        assert (loading.status_code, loading.json()["error"]["code"]) == (503, "loading")
        assert int(loading.headers["retry-after"]) >= 1
        assert client.get("/livez").status_code == 200
        gate.set()
        wait_for(client, 200)
        assert client.head("/readyz").status_code == 200
        assert client.get("/items/a").json() == "loaded"


def test_a_failed_load_is_told_and_not_retried(build: Any) -> None:
    def load() -> str:
        raise ValueError("config.json is missing")

    with TestClient(build(load)) as client:
        response = wait_for(client, 503, "failed")
        assert response.json()["error"]["message"] == "the server cannot serve: config.json is missing"
        assert client.get("/items/a").status_code == 503
        assert client.get("/livez").status_code == 200


def test_errors_not_meant_for_people_are_told_with_their_type(build: Any) -> None:
    def load() -> str:
        raise KeyError("weights")

    with TestClient(build(load)) as client:
        assert "KeyError: 'weights'" in wait_for(client, 503, "failed").json()["error"]["message"]


@pytest.mark.case("D30")
def test_where_no_thread_can_be_started_to_load_in_that_is_told(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "load":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with TestClient(build()) as client:
        error = wait_for(client, 503, "failed").json()["error"]
        assert error["message"].startswith("the server cannot serve: no thread can be started: the memory, or ")


def test_two_apps_share_nothing(build: Any) -> None:
    with TestClient(build(lambda: "one")) as one, TestClient(build(lambda: "two")) as two:
        wait_for(one, 200)
        wait_for(two, 200)
        assert (one.get("/items/a").json(), two.get("/items/a").json()) == ("one", "two")
        one.get("/nothing")
        assert 'route="unmatched"' in one.get("/metrics").text
        assert 'route="unmatched"' not in two.get("/metrics").text
