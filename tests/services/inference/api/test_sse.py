"""The stream as an ASGI server sees it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from services.inference.api.sse import DONE, EventStream, encode_event
from shared.http import ApiError

SCOPE: Any = {"type": "http", "method": "POST", "path": "/", "headers": []}


class Server:
    """Keeps what is sent; `disconnect` is the client's."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.disconnect = asyncio.Event()
        self.stalls = False

    async def receive(self) -> Any:
        await self.disconnect.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.messages.append(message)
        if self.stalls:
            await anyio.sleep_forever()

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]


def serve(events: Callable[[Server], AsyncIterator[bytes]], *, stalls: bool = False) -> tuple[Server, int]:
    """Run a stream to its end; returns also how often `on_end` was called."""
    ended = 0

    def on_end() -> None:
        nonlocal ended
        ended += 1

    async def run() -> Server:
        server = Server()
        server.stalls = stalls
        stream = EventStream(events(server), on_end=on_end)
        with anyio.fail_after(240):
            await stream(SCOPE, server.receive, server.send)
        return server

    return asyncio.run(run()), ended


def test_each_part_is_one_write_and_the_first_one_begins_the_response() -> None:
    async def events(_server: Server) -> AsyncIterator[bytes]:
        yield encode_event({"a": 1}) + encode_event({"b": "é\u2028"})
        yield DONE

    server, ended = serve(events)
    assert server.messages[0]["status"] == 200
    assert dict(server.messages[0]["headers"])[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert server.bodies == [b'data: {"a":1}\n\ndata: {"b":"\\u00e9\\u2028"}\n\n', b"data: [DONE]\n\n", b""]
    assert ended == 1


def test_what_fails_before_the_first_event_has_a_status() -> None:
    async def events(_server: Server) -> AsyncIterator[bytes]:
        raise ApiError(503, "not now", code="queue_timeout", headers={"Retry-After": "1"})
        yield b""

    server, ended = serve(events)
    start, body = server.messages
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"1")
    assert json.loads(body["body"])["error"]["code"] == "queue_timeout"
    assert ended == 1


@pytest.mark.case("D25")
@pytest.mark.parametrize(("error", "message"), [(ApiError(504, "too long"), "too long"), (KeyError("x"), "internal")])
def test_what_fails_later_is_a_last_event(error: Exception, message: str) -> None:
    async def events(_server: Server) -> AsyncIterator[bytes]:
        yield encode_event({"a": 1})
        raise error

    server, ended = serve(events)
    assert message in json.loads(server.bodies[1].removeprefix(b"data: "))["error"]["message"]
    assert [message.get("more_body") for message in server.messages[1:]] == [True, True], "it stays incomplete"
    assert ended == 1


def test_silence_is_filled_with_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.inference.api.sse.PING_SECONDS", 0.01)

    async def events(server: Server) -> AsyncIterator[bytes]:
        while len(server.bodies) < 3:
            await asyncio.sleep(0.001)
        yield DONE

    server, _ = serve(events)
    assert server.messages[0]["status"] == 200
    assert set(server.bodies[:3]) == {b": still here\n\n"}
    assert server.bodies[-2:] == [DONE, b""]


def test_a_client_that_reads_nothing_gets_no_comment_and_its_disconnect_ends_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server closes such a connection: tests/services/inference/test_cancellation.py."""
    monkeypatch.setattr("services.inference.api.sse.PING_SECONDS", 0.01)

    async def events(server: Server) -> AsyncIterator[bytes]:
        asyncio.get_running_loop().call_later(0.1, server.disconnect.set)
        while True:
            yield encode_event({"a": 1})

    server, ended = serve(events, stalls=True)
    assert (len(server.messages), ended) == (1, 1)


def test_a_client_that_does_not_even_read_a_comment_gets_one_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.inference.api.sse.PING_SECONDS", 0.01)

    async def events(server: Server) -> AsyncIterator[bytes]:
        asyncio.get_running_loop().call_later(0.1, server.disconnect.set)
        await anyio.sleep_forever()
        yield DONE

    server, ended = serve(events, stalls=True)
    assert (len(server.messages), ended) == (1, 1)


def test_a_client_that_disconnects_before_the_response_starts_is_an_error() -> None:
    ended = []

    async def events() -> AsyncIterator[bytes]:
        await anyio.sleep_forever()
        yield DONE

    async def run() -> None:
        server = Server()
        server.disconnect.set()
        with pytest.raises(ApiError, match="the client closed the connection"):
            await EventStream(events(), on_end=lambda: ended.append(1))(SCOPE, server.receive, server.send)
        assert (server.messages, ended) == ([], [1])

    asyncio.run(run())


def test_a_client_that_leaves_ends_the_stream() -> None:
    async def events(server: Server) -> AsyncIterator[bytes]:
        yield encode_event({"a": 1})
        server.disconnect.set()
        await anyio.sleep_forever()

    server, ended = serve(events)
    assert (server.bodies, ended) == ([encode_event({"a": 1})], 1)
