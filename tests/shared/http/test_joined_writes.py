"""How a response leaves: each write to the connection as one item."""

import asyncio
from typing import Any

from shared.http.joined_writes import JoinedWrites, UnchunkedWrites


class Connection:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.written.append(b"".join(parts))

    def close(self) -> None:
        self.written.append(b"closed")


def written(*steps: bytes | None, writes: type[JoinedWrites] = JoinedWrites) -> list[bytes]:
    """What leaves of several writes; None stands for a turn of the event loop."""
    connection: Any = Connection()

    async def write_all() -> None:
        joined = writes(connection, asyncio.get_running_loop(), connection.close)
        for step in steps:
            await asyncio.sleep(0) if step is None else joined.write(step)
        joined.close()

    asyncio.run(write_all())
    found: list[bytes] = connection.written
    return found


def test_the_head_leaves_with_the_body() -> None:
    assert written(b"head", b"body") == [b"headbody", b"closed"]
    assert written(b"head", b"body", b"more", b"", None, b"end") == [b"headbody", b"more", b"", b"end", b"closed"]
    large = b"x" * 1_000_000
    assert written(b"head", large) == [b"head" + large, b"closed"]


def test_the_head_of_a_stream_does_not_wait() -> None:
    assert written(b"head", None, b"body") == [b"head", b"body", b"closed"]


def test_a_head_alone_leaves_before_the_end() -> None:
    assert written(b"head") == [b"head", b"closed"]
    assert written(b"head", b"") == [b"head", b"closed"]


def test_chunks_become_what_they_hold() -> None:
    head = b"HTTP/1.1 200 OK\r\nx: y\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"b\r\n1\r\na\r\n0\r\n\r\n\r\n", None, b"", b"10\r\n0123456789abcdef\r\n0\r\n\r\n"
    plain = b"1\r\na\r\n0\r\n\r\n", b"", b"0123456789abcdef"
    assert b"".join(written(head, *chunks, writes=UnchunkedWrites)) == (
        b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n" + b"".join(plain) + b"closed"
    )


def test_a_body_of_a_known_length_stays_as_it_is() -> None:
    steps = b"content-length: 5\r\n\r\n", b"2\r\nab"
    assert b"".join(written(*steps, writes=UnchunkedWrites)) == b"".join(steps) + b"closed"
