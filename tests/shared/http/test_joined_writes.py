"""How a response leaves: each write to the connection as one item."""

import asyncio
from typing import Any

from shared.http.joined_writes import JoinedWrites


class Connection:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.written.append(b"".join(parts))

    def close(self) -> None:
        self.written.append(b"closed")


def written(*steps: bytes | None) -> list[bytes]:
    """What leaves of several writes; None stands for a turn of the event loop."""
    connection: Any = Connection()

    async def write_all() -> None:
        joined = JoinedWrites(connection, asyncio.get_running_loop(), connection.close)
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
