"""The stream as an ASGI server sees it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from services.inference.api.sse import DONE, EventStream, frame
from shared.http import ApiError

SCOPE: Any = {"type": "http", "method": "POST", "path": "/", "headers": []}


class Server:
    """Keeps what is sent; `leave` is the client's."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.leave = asyncio.Event()
        self.stalls = False

    async def receive(self) -> Any:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.messages.append(message)
        if self.stalls:
            await anyio.sleep_forever()

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]


def serve(frames: Callable[[Server], AsyncIterator[bytes]], *, stalls: bool = False) -> tuple[Server, int]:
    """Run a stream to its end; gives also how often its end was told."""
    ended = 0

    def on_end() -> None:
        nonlocal ended
        ended += 1

    async def run() -> Server:
        server = Server()
        server.stalls = stalls
        stream = EventStream(frames(server), on_end=on_end, send_timeout=0.05)
        with anyio.fail_after(240):
            await stream(SCOPE, server.receive, server.send)
        return server

    return asyncio.run(run()), ended


def test_each_part_is_one_write_and_the_first_one_begins_the_response() -> None:
    async def frames(_server: Server) -> AsyncIterator[bytes]:
        yield frame({"a": 1}) + frame({"b": "é\u2028"})
        yield DONE

    server, ended = serve(frames)
    assert server.messages[0]["status"] == 200
    assert dict(server.messages[0]["headers"])[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert server.bodies == [b'data: {"a":1}\n\ndata: {"b":"\\u00e9\\u2028"}\n\n', b"data: [DONE]\n\n", b""]
    assert ended == 1


def test_what_fails_before_the_first_frame_has_a_status() -> None:
    async def frames(_server: Server) -> AsyncIterator[bytes]:
        raise ApiError(503, "not now", code="queue_timeout", headers={"Retry-After": "1"})
        yield b""

    server, ended = serve(frames)
    start, body = server.messages
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"1")
    assert json.loads(body["body"])["error"]["code"] == "queue_timeout"
    assert ended == 1


@pytest.mark.case("D25")
@pytest.mark.parametrize(("error", "message"), [(ApiError(504, "too long"), "too long"), (KeyError("x"), "internal")])
def test_what_fails_later_is_a_last_frame(error: Exception, message: str) -> None:
    async def frames(_server: Server) -> AsyncIterator[bytes]:
        yield frame({"a": 1})
        raise error

    server, ended = serve(frames)
    assert message in json.loads(server.bodies[1].removeprefix(b"data: "))["error"]["message"]
    assert [message.get("more_body") for message in server.messages[1:]] == [True, True], "it stays incomplete"
    assert ended == 1


def test_silence_is_filled_with_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.inference.api.sse.PING_SECONDS", 0.01)

    async def frames(server: Server) -> AsyncIterator[bytes]:
        while len(server.bodies) < 3:
            await asyncio.sleep(0.001)
        yield DONE

    server, _ = serve(frames)
    assert server.messages[0]["status"] == 200
    assert set(server.bodies[:3]) == {b": still here\n\n"}
    assert server.bodies[-2:] == [DONE, b""]


def test_a_client_that_reads_nothing_is_given_up() -> None:
    async def frames(_server: Server) -> AsyncIterator[bytes]:
        while True:
            yield frame({"a": 1})

    server, ended = serve(frames, stalls=True)
    assert (len(server.messages), ended) == (1, 1)


def test_a_client_that_does_not_even_read_a_comment_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.inference.api.sse.PING_SECONDS", 0.01)

    async def frames(_server: Server) -> AsyncIterator[bytes]:
        await anyio.sleep_forever()
        yield DONE

    server, ended = serve(frames, stalls=True)
    assert (len(server.messages), ended) == (1, 1)


def test_a_client_that_leaves_ends_the_stream() -> None:
    async def frames(server: Server) -> AsyncIterator[bytes]:
        yield frame({"a": 1})
        server.leave.set()
        await anyio.sleep_forever()

    server, ended = serve(frames)
    assert (server.bodies, ended) == ([frame({"a": 1})], 1)
