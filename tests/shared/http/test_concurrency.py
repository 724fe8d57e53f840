"""Work in threads of AnyIO's, where the system may have no room for one; real sockets, as a service has them."""

import json
import threading
from typing import Any

import anyio
import httpx
import pytest

from shared.http import ThreadPool
from shared.http.concurrency import in_thread

LARGE = {"text": "x" * 100_000}  # which is read in a thread


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is set, none of AnyIO's threads starts."""
    refused = threading.Event()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if refused.is_set() and thread.name == "AnyIO worker thread":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return refused


@pytest.mark.case("D30")
def test_a_request_without_a_thread_is_told_so_and_the_next_is_served(
    build: Any, serve: Any, no_room: threading.Event
) -> None:
    host, port = serve(build())
    with httpx.Client(base_url=f"http://{host}:{port}", timeout=60) as client:
        no_room.set()
        for _ in range(50):  # more than AnyIO has threads: none of them is taken for good
            answer = client.post("/echo", json=LARGE)
            assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["code"] == "no_thread"
        assert client.post("/echo", json={"text": "small"}).status_code == 200
        no_room.clear()
        assert (
            client.post("/echo", content=json.dumps(LARGE), headers={"Content-Type": "application/json"}).json()["text"]
            == LARGE["text"]
        )


@pytest.mark.case("D30")
def test_workers_without_a_thread_give_their_place_back(no_room: threading.Event) -> None:
    async def work() -> None:
        workers = ThreadPool(1)
        no_room.set()
        for _ in range(3):
            with pytest.raises(Exception, match="no thread can be started"):
                await workers.run(int, "7")
        no_room.clear()
        assert await workers.run(int, "7") == 7

    anyio.run(work)


def test_errors_of_the_work_itself_stay_as_they_are() -> None:
    async def work() -> None:
        def fail() -> None:
            raise RuntimeError("another")

        with pytest.raises(RuntimeError, match=r"^another$"):
            await in_thread(fail)

    anyio.run(work)
