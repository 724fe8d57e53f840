"""Bodies over the limit are refused before they are read; real sockets, since the client may lie."""

import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from fastapi import Response
from fastapi.responses import StreamingResponse

LIMIT = 10_000


@pytest.fixture
def address(build: Any, serve: Any) -> Any:
    return serve(build(max_body_bytes=LIMIT))


def exchange(address: tuple[str, int], headers: str, *parts: bytes) -> bytes:
    """Send a request and no more; returns what comes back until the server closes."""
    with socket.create_connection(address, timeout=240) as connection:
        head = f"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}\r\n"
        connection.sendall(head.encode())
        for part in parts:
            connection.sendall(part)
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    answer = b""
    while data := connection.recv(65536):
        answer += data
    return answer


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


BODY = b'{"text": "%s"}'


def test_the_limit_itself_fits(address: tuple[str, int]) -> None:
    body = BODY % (b"x" * (LIMIT - len(BODY) + 2))
    assert len(body) == LIMIT
    assert exchange(address, f"Content-Length: {LIMIT}\r\nConnection: close\r\n", body).startswith(b"HTTP/1.1 200")
    body += b" "
    answer = exchange(address, f"Content-Length: {LIMIT + 1}\r\n", body)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"the body of 10,001 bytes exceeds the limit of 10,000" in answer


def test_a_large_body_is_refused_before_it_is_sent(address: tuple[str, int]) -> None:  # B69
    answer = exchange(address, "Content-Length: 300000000\r\n")  # it ends, so the client need not send it all
    assert answer.startswith(b"HTTP/1.1 413")
    assert b'"code":"body_too_large"' in answer


def test_a_client_that_sends_its_large_body_first_gets_the_answer(address: tuple[str, int]) -> None:  # B69
    """As nearly all do that are no curl. A close with unread data would reset the connection, and lose the answer."""
    body = b"x" * 26_000_000
    assert exchange(address, f"Content-Length: {len(body)}\r\n", body).startswith(b"HTTP/1.1 413")
    url = f"http://{address[0]}:{address[1]}/echo"
    assert httpx.post(url, content=body).json()["error"]["code"] == "body_too_large"


def test_a_body_of_unknown_length_is_refused_while_it_is_read(address: tuple[str, int]) -> None:  # B69
    many = [chunk(b"x" * 1000)] * 20
    answer = exchange(address, "Transfer-Encoding: chunked\r\n", *many)
    assert answer.startswith(b"HTTP/1.1 413")
    many = [chunk(b"x" * 65_536)] * 400
    assert exchange(address, "Transfer-Encoding: chunked\r\n", *many).startswith(b"HTTP/1.1 413")
    small = exchange(address, "Transfer-Encoding: chunked\r\nConnection: close\r\n", chunk(BODY % b"a"), b"0\r\n\r\n")
    assert small.startswith(b"HTTP/1.1 200")


def test_a_length_that_lies_does_no_harm(address: tuple[str, int]) -> None:  # B69
    too_short = exchange(address, "Content-Length: 5\r\n", BODY % b"abcdef")
    assert too_short.startswith((b"HTTP/1.1 400", b"HTTP/1.1 422"))
    with socket.create_connection(address, timeout=240) as connection:
        connection.sendall(
            b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
            + BODY % b"abc"
        )
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""
    assert exchange(address, "Content-Length: -5\r\n", BODY % b"abc").startswith(b"HTTP/1.1 400")
    assert exchange(address, "Content-Length: 15\r\nConnection: close\r\n", BODY % b"abc").startswith(b"HTTP/1.1 200")


@pytest.fixture
def busy(build: Any, serve: Any) -> Iterator[tuple[tuple[str, int], list[socket.socket]]]:
    """A service whose budget of a megabyte is taken by bodies that never end."""
    app = build(max_body_bytes=1 << 20, max_bytes_in_flight=1 << 20)
    address = serve(app)
    connections = []
    for _ in range(2):
        connections.append(socket.create_connection(address, timeout=240))
        connections[-1].sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        connections[-1].sendall(b"Content-Length: 700000\r\n\r\n" + b" " * 560_000)
    budget = next(entry.kwargs["budget"] for entry in app.user_middleware if "budget" in entry.kwargs)
    deadline = time.monotonic() + 240
    while budget.held < 980_000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield address, connections
    for connection in connections:
        connection.close()


@pytest.mark.case("D07")
def test_bodies_in_flight_have_a_common_limit(busy: tuple[tuple[str, int], list[socket.socket]]) -> None:
    address, held = busy
    with socket.create_connection(address, timeout=240) as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        connection.sendall(b"Content-Length: 300000\r\n\r\n" + b" " * 200_000)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in answer
    assert b"OWNLM_MAX_BYTES_IN_FLIGHT" in answer
    # Small requests are served meanwhile, and large ones again once the others are gone.
    assert httpx.post(f"http://{address[0]}:{address[1]}/echo", json={"text": "a" * 1000}).status_code == 200
    for connection in held:
        connection.close()
    deadline = time.monotonic() + 240
    while httpx.post(f"http://{address[0]}:{address[1]}/echo", json={"text": "a" * 500_000}).status_code != 200:
        assert time.monotonic() < deadline


@pytest.mark.case("D07")
def test_answers_that_wait_for_their_readers_count(build: Any, serve: Any) -> None:
    app = build(max_bytes_in_flight=30_000_000)

    @app.get("/large")
    async def large() -> Response:
        return Response(b"x" * 20_000_000)

    address = serve(app)
    url = f"http://{address[0]}:{address[1]}/large"
    with socket.create_connection(address, timeout=240) as reader:
        reader.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert reader.recv(100).startswith(b"HTTP/1.1 200 ")
        assert httpx.get(url).status_code == 503
    deadline = time.monotonic() + 240
    while httpx.get(url).status_code != 200:
        assert time.monotonic() < deadline


@pytest.mark.case("D07")
def test_each_part_of_a_stream_counts_until_it_is_sent(build: Any, serve: Any) -> None:
    """A part after the first is too late to refuse: it counts, and what comes then is refused."""
    app = build(max_body_bytes=1 << 20, max_bytes_in_flight=6_000_000)
    budget = next(entry.kwargs["budget"] for entry in app.user_middleware if "budget" in entry.kwargs)
    held_between: list[int] = []

    async def parts() -> AsyncIterator[bytes]:
        yield b"y" * 4_000_000
        held_between.append(budget.held)
        yield b"z" * 8_000_000
        held_between.append(budget.held)
        yield b"end"

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(parts())

    address = serve(app)
    with socket.create_connection(address, timeout=240) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # the system would take the whole part
        reader.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        got = b""
        while not got.endswith(b"z"):
            got += reader.recv(1 << 18)
        assert budget.held == 8_000_000 - (1 << 18)
        assert httpx.post(f"http://{address[0]}:{address[1]}/echo", json={"text": "a" * 100_000}).status_code == 503
        got += read_all(reader)
    assert held_between == [0, 0]
    assert (got.count(b"y"), got.count(b"z"), b"end" in got) == (4_000_000, 8_000_000, True)
    assert budget.held == 0
