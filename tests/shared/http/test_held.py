"""What requests hold is freed when they end, without the garbage collector: it may come much later."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient

from shared.http import ApiError, BodyRoute, ThreadPool, add_body_routes, cancel_on_disconnect
from tests.shared.http.conftest import EchoRequest
from tests.shared.http.connection import Transport, protocol_of, statuses

GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.case("D08")
@pytest.mark.usefixtures("_no_collector")
def test_a_refused_body_is_freed(build: Any) -> None:
    """The error of a thread or task is kept by its future, which the frames of the error's traceback keep."""
    bodies = []
    workers = ThreadPool(1)

    def refuse(body: EchoRequest) -> NoReturn:
        bodies.append(weakref.ref(body))
        raise ApiError(400, "refused")

    async def in_thread(body: EchoRequest, _request: Request) -> Response:
        return await workers.run(refuse, body)

    async def in_task(body: EchoRequest, request: Request) -> Response:
        return await cancel_on_disconnect(request, workers.run(refuse, body))

    app: FastAPI = build()
    add_body_routes(app, BodyRoute("/thread", in_thread), BodyRoute("/task", in_task))
    with TestClient(app) as client:
        for path in ("/thread", "/task"):
            assert client.post(path, json={"text": "x" * 100_000}).status_code == 400
    assert [body() for body in bodies] == [None, None]


@pytest.mark.case("D07")
@pytest.mark.usefixtures("_no_collector")
def test_a_body_whose_client_left_is_freed(build: Any) -> None:
    async def leave() -> None:
        protocol: Any = protocol_of(build(), Transport())
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
        protocol.data_received(head + b" " * 50_000)
        request = weakref.ref(protocol.cycle)
        await turns()
        protocol.data_received(b" " * 40_000)
        protocol.connection_lost(None)
        await turns()
        assert request() is None

    asyncio.run(leave())


@pytest.mark.case("D03")
def test_a_connection_that_was_reset_is_freed(build: Any) -> None:
    """Not only when it would have been idle for too long, a minute later."""

    async def reset() -> None:
        transport = Transport()
        protocol: Any = protocol_of(build(), transport)
        protocol.data_received(GET)
        await turns()
        assert statuses(transport.written) == [b"200"]
        protocol.connection_lost(ConnectionResetError())
        connection = weakref.ref(protocol)
        del protocol
        await turns()
        gc.collect()
        assert connection() is None

    asyncio.run(reset())


@pytest.mark.case("D03")
def test_an_idle_connection_does_not_hold_its_last_packet(build: Any) -> None:
    async def idle() -> None:
        transport = Transport()
        protocol: Any = protocol_of(build(), transport)
        protocol.data_received(GET)
        await turns()
        assert statuses(transport.written) == [b"200"]
        assert protocol._unparsed.obj == b""
        protocol.connection_lost(None)

    asyncio.run(idle())
