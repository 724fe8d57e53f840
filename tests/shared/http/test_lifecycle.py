import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.http import Lifecycle


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
        dead = client.get("/livez")
        assert (dead.status_code, dead.json()["error"]["code"]) == (503, "failed")
        assert client.head("/livez").status_code == 503


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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its attribute `now` is the time."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("shared.http.lifecycle.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_a_model_that_is_not_back_in_time_is_a_failure(clock: SimpleNamespace) -> None:
    """Whatever holds a restart up, an orchestrator sees it; time of service starts the limit anew."""
    faults: list[tuple[str, bool]] = []
    lifecycle = Lifecycle(lambda: "model", health=lambda _: faults[-1] if faults else None, load_timeout=60)
    asyncio.run(lifecycle._finish_loading("model", None))
    for _ in range(3):
        faults.append(("it was killed", False))
        assert lifecycle.status() == ("restarting", "it was killed")
        clock.now += 110
        assert lifecycle.status()[0] == "restarting"
        faults.clear()
        assert lifecycle.status() == ("ready", None)
    faults.append(("it was killed", False))
    lifecycle.status()
    clock.now += 121
    failed = "failed", "still restarting after 120 s (limit: 2 x OWNLM_LOAD_TIMEOUT): it was killed"
    assert lifecycle.status() == failed
    faults.clear()
    assert lifecycle.status() == failed, "it is ending already"


def test_a_load_that_never_ends_is_a_failure(clock: SimpleNamespace) -> None:
    closed: list[str] = []
    late, unlimited = Lifecycle(str, load_timeout=60, close=closed.append), Lifecycle(str)
    assert late.status() == unlimited.status() == ("loading", None)
    clock.now += 121
    assert late.status() == ("failed", "still loading after 120 s (limit: 2 x OWNLM_LOAD_TIMEOUT)")
    assert unlimited.status() == ("loading", None)
    asyncio.run(late._finish_loading("model", None))
    assert late.status()[0] == "failed", "it is ending already"
    assert closed == ["model"]


def test_two_apps_share_nothing(build: Any) -> None:
    with TestClient(build(lambda: "one")) as one, TestClient(build(lambda: "two")) as two:
        wait_for(one, 200)
        wait_for(two, 200)
        assert (one.get("/items/a").json(), two.get("/items/a").json()) == ("one", "two")
        one.get("/nothing")
        assert 'route="unmatched"' in one.get("/metrics").text
        assert 'route="unmatched"' not in two.get("/metrics").text
