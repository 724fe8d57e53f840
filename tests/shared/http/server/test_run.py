"""How a service listens."""

import asyncio
import socket
import threading
from typing import Any

import uvicorn

from shared.http.server.run import duplicate


def test_connections_that_wait_are_accepted_together(build: Any) -> None:
    """With uvloop, which takes one connection of each socket in a turn of the event loop."""
    app = build()
    loops: list[asyncio.AbstractEventLoop] = []
    begun, go_on = threading.Event(), threading.Event()
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1
        loops[0].call_soon(count)

    @app.get("/hold")
    async def hold() -> None:
        loops.append(asyncio.get_running_loop())
        begun.set()
        go_on.wait(240)  # the event loop stands still
        loops[0].call_soon(count)

    @app.get("/turn")
    async def turn() -> int:
        return turns

    def connect(path: str) -> socket.socket:
        connection = socket.create_connection(address, timeout=240)
        connection.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
        return connection

    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        address = listener.getsockname()
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, loop="uvloop"))
        thread = threading.Thread(target=server.run, args=[duplicate(listener)])
        thread.start()
        first = connect("/hold")
        assert begun.wait(240)
        waiting = [connect("/turn") for _ in range(12)]
        go_on.set()
        answers = [connection.makefile("rb").read() for connection in waiting]
        server.should_exit = True
        thread.join()
        for connection in (first, *waiting):
            connection.close()
    seen = {int(answer.rpartition(b"\r\n")[2]) for answer in answers}
    assert max(seen) - min(seen) < 4
