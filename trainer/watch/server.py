"""The web server of the page about runs."""

import asyncio
import errno
import ipaddress
import socket
from contextlib import suppress
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.pages import SecurityHeaders, page_routes
from trainer.errors import TrainerError
from trainer.watch.exporter import CONTENT_TYPE, Exporter
from trainer.watch.hub import Hub
from trainer.watch.runs import WatchedRuns

PORT = 8002
"""Beside those of the services, 8000 and 8001."""

LOCAL = "127.0.0.1"

# asyncio fails as often in a row to accept once file descriptors run out (CPython issue 151615), beside a run.
_BACKLOG = 16


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        TrainerError: the port is in use, or the address is not this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise TrainerError(
                f"port {port} of {host} is in use by another program; choose another --port, or 0 for any that is free"
            ) from error
        raise TrainerError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error


def address_of(listener: socket.socket) -> str:
    """What to open in a browser on this machine."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = LOCAL
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class WatchServer(uvicorn.Server):
    """Serves the page about some runs.

    Args:
        runs: Those.
        host: What it listens on, by name or number; may be used to address it.
    """

    def __init__(self, runs: WatchedRuns, host: str = LOCAL) -> None:
        self.hub = Hub(runs)
        self._exporter = Exporter(runs.paths)
        self._is_over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        config = uvicorn.Config(
            watch_app(self.hub, self._exporter, host),
            log_config=None,
            log_level="warning",
            access_log=False,
            date_header=False,
            server_header=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            timeout_graceful_shutdown=3,
            backlog=_BACKLOG,
        )
        super().__init__(config)

    def stop(self) -> None:
        """Shut down because the runs have ended, and notify open pages. Thread-safe once `serve` has begun."""
        self._is_over = self.should_exit = True
        self._wake()

    async def main_loop(self) -> None:
        """Wait for the end. uvicorn's own looks ten times a second, which a run beside it would pay for."""
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._end.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end, for a signal."""
        super().handle_exit(sig, frame)
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams first: the server waits for them."""
        await self.hub.close(is_over=self._is_over)
        await super().shutdown(sockets)


def watch_app(hub: Hub, exporter: Exporter, host: str) -> Starlette:
    """The page, its files, the stream of what is new, and the figures of now for Prometheus."""

    async def events(request: Request) -> Response:
        headers, kind = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, "text/event-stream"
        if request.method == "HEAD":  # the stream would not end
            return Response(headers=headers, media_type=kind)
        return StreamingResponse(hub.frames(), headers=headers, media_type=kind)

    async def metrics(_: Request) -> Response:
        return Response(await exporter.text(), media_type=CONTENT_TYPE)

    routes = [*page_routes(["trainer.report.pages"]), Route("/events", events), Route("/metrics", metrics)]
    known = Middleware(KnownHosts, names=(host, "localhost", socket.gethostname()))
    return Starlette(routes=routes, middleware=[Middleware(SecurityHeaders), known])


class KnownHosts:
    """Refuses requests to names that are not this machine's, as of a page whose name was made to lead here.

    Against DNS rebinding: such a page could read what this server sends, since to its browser both are one host. A
    request to an address in numbers has no name that could have been changed.
    """

    def __init__(self, app: ASGIApp, names: tuple[str, ...]) -> None:
        self._app, self._names = app, {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on."""
        hosts = [value.decode("latin-1").lower() for name, value in scope.get("headers", ()) if name == b"host"]
        if scope["type"] == "http" and not (hosts and all(map(self._is_known, hosts))):
            response = PlainTextResponse("This server answers to its address and to localhost only.\n", 421)
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
        if name in self._names:
            return True
        with suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return False
