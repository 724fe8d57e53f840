"""Clients that read streams, lean enough not to be what is measured: no HTTP library, a connection for each request."""

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_END_OF_BODY = b"\r\n0\r\n\r\n"
_LONGEST_ANSWER_SECONDS = 120.0


@dataclass
class Measurement:
    """What one round of clients saw.

    Attributes:
        tokens_per_second: Generated tokens of all clients, from the first request to the last answer's end.
        first_token_ms: The median time from a request to its first token.
        between_ms: The median time between two tokens of a stream.
        between_p99_ms: What 99 of 100 such times stay under.
    """

    tokens_per_second: float
    first_token_ms: float
    between_ms: float
    between_p99_ms: float


@dataclass
class _Stream(asyncio.Protocol):
    """Sends a request, notes when frames arrive."""

    arrivals: list[float] = field(default_factory=list)
    tail: bytes = b""
    done: asyncio.Future[None] | None = None
    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    async def post(self, head: bytes, body: bytes) -> list[float]:
        """Send, wait for the end of the answer, and return when its frames came."""
        assert self.transport is not None
        self.arrivals, self.tail = [], b""
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(head + body)
        await asyncio.wait_for(self.done, _LONGEST_ANSWER_SECONDS)
        return self.arrivals

    def data_received(self, data: bytes) -> None:
        frames = data.count(b"data: {")
        if frames:
            self.arrivals += [time.perf_counter()] * frames
        self.tail = (self.tail + data)[-4096:]
        if self.tail.endswith(_END_OF_BODY) and self.done is not None and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(exc or ConnectionError(f"the server closed the connection: {self.tail[-300:]!r}"))


def measure(
    port: int, path: str, bodies: Sequence[dict[str, Any]], *, clients: int, count_tokens: Callable[[bytes], int]
) -> Measurement:
    """Let `clients` work through `bodies` at the same time, each taking the next one when its answer has ended."""
    return asyncio.run(_measure(port, path, list(bodies), clients, count_tokens))


async def _measure(
    port: int, path: str, bodies: list[dict[str, Any]], clients: int, count_tokens: Callable[[bytes], int]
) -> Measurement:
    loop = asyncio.get_running_loop()
    tokens, first, between = 0, [], []

    async def work() -> None:
        nonlocal tokens
        while bodies:
            body = json.dumps(bodies.pop()).encode()
            head = (
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            started = time.perf_counter()
            transport, stream = await loop.create_connection(_Stream, "127.0.0.1", port)
            arrivals = await stream.post(head.encode(), body)
            transport.close()
            tokens += count_tokens(stream.tail)
            first.append(arrivals[0] - started)
            between.extend(b - a for a, b in itertools.pairwise(arrivals))

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(clients)))
    seconds = time.perf_counter() - started
    between.sort()
    return Measurement(
        tokens_per_second=tokens / seconds,
        first_token_ms=1000 * statistics.median(first),
        between_ms=1000 * statistics.median(between),
        between_p99_ms=1000 * between[int(0.99 * len(between))],
    )
