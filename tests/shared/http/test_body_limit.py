"""Bodies over the limit are refused before they are read; real sockets, since the client may lie."""

import socket
from typing import Any

import httpx
import pytest

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
    assert b"the body has 10,001 bytes, the limit is 10,000" in answer


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
