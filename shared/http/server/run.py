"""Run a service: settings, logging, socket, server, and an orderly shutdown."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import structlog
import uvicorn
from fastapi import FastAPI

from shared.http.server import file_descriptors
from shared.http.server.logs import configure_logging
from shared.http.server.protocol import RequestProtocol
from shared.http.server.workers import EXIT_FAILED, WorkerLink, WorkersFailedError, supervise
from shared.http.settings import LOCAL_ADDRESSES, ServiceSettings, SettingsError, SettingsT, load_settings
from shared.system.allocation import freeze_objects, give_back_freed_memory
from shared.system.errors import escape_unprintable

if TYPE_CHECKING:
    from shared.http.lifecycle import Lifecycle

EXIT_USAGE = 2

_KEEP_ALIVE_SECONDS = 75  # longer than the 60 s after which common proxies drop an idle connection themselves
_LAST_BYTES_SECONDS = 1.0
_BACKLOG = 2048  # uvicorn's
_ACCEPTED_PER_TURN = 16


def run(create_app: Callable[[SettingsT], FastAPI], settings_class: type[SettingsT], name: str) -> NoReturn:
    """Serve until SIGTERM or Ctrl-C, then exit the process.

    Errors that the user can fix are one sentence on standard error. The exit code is 0 after an orderly shutdown, 1 if
    the model cannot be loaded or the port cannot be used, and 2 for invalid settings.
    """
    code = _run(create_app, settings_class, name)
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed by now. The interpreter would take seconds more to unload large libraries, also from under a
    # thread that is still loading a model.
    os._exit(code)


def _run(create_app: Callable[[SettingsT], FastAPI], settings_class: type[SettingsT], name: str) -> int:
    give_back_freed_memory()
    try:
        settings = load_settings(settings_class)
    except SettingsError as error:
        return _fail(name, str(error), EXIT_USAGE)
    configure_logging(settings.log_level, settings.log_format)
    link = WorkerLink.from_environment()
    if link is not None:
        return _serve(create_app, settings, name, link.listener, link)
    log = structlog.get_logger("ownlm")
    try:
        listener = _listen(settings)
    except (OSError, TypeError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"cannot listen on {settings.host}:{settings.port}: {reason}; set OWNLM_HOST or OWNLM_PORT"
        return _fail(name, message, EXIT_FAILED)
    log.info("listening", service=name, host=settings.host, port=listener.getsockname()[1])
    if settings.api_keys is None and settings.api_keys_file is None and settings.host not in LOCAL_ADDRESSES:
        log.warning("no API keys are set: everyone who can reach the port can use it", host=settings.host)
    if settings.processes == 1:
        code = _serve(create_app, settings, name, listener)
    else:
        code = _supervise(settings, name, listener)
    if code == 0:
        log.info("stopped", service=name)
    return code


def _serve(
    create_app: Callable[[SettingsT], FastAPI],
    settings: SettingsT,
    name: str,
    listener: socket.socket,
    link: WorkerLink | None = None,
) -> int:
    try:
        app = create_app(settings)
    except SettingsError as error:
        return _fail(name, str(error), EXIT_USAGE)
    server = _Server(app, settings, link)
    # Workers take turns at the backlog, each accepting one connection at a time.
    server.run(sockets=[listener] if link is not None else duplicate(listener))
    state, reason = server.lifecycle.status()
    return _fail(name, str(reason), EXIT_FAILED) if state == "failed" else 0


def _supervise(settings: ServiceSettings, name: str, listener: socket.socket) -> int:
    try:
        return supervise(listener, settings.processes, settings.shutdown_timeout)
    except WorkersFailedError as error:
        return _fail(name, str(error), EXIT_FAILED)


class _Server(uvicorn.Server):
    """uvicorn's server, which also drains before it closes, stops if loading fails, and exits with 0 after SIGTERM.

    A worker also sends heartbeats to its supervisor, and ends when the supervisor has ended.
    """

    def __init__(self, app: FastAPI, settings: ServiceSettings, link: WorkerLink | None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=http_protocol(settings.client_timeout),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # the client's address is not used
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                backlog=_BACKLOG,
            )
        )
        self.lifecycle: Lifecycle[Any] = app.state.lifecycle
        self.lifecycle.loads_first = link is not None and not link.is_first
        self._link = link
        self._is_ready = False
        self._shutdown_timeout = settings.shutdown_timeout

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """The first signal begins an orderly shutdown; the second one ends the process at once."""
        if self.should_exit:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Also log errors of the event loop, and keep asyncio's own from spending its time on failing to accept.

        As often as clients may queue it accepts in a row, and goes on after an error (CPython issue 151615).
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(file_descriptors.log_error)
        if isinstance(loop, asyncio.BaseEventLoop):  # uvloop's is none
            self.config.backlog = 1
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        """Also stop when loading failed or a worker has lost its supervisor."""
        state = self.lifecycle.status()[0]
        if state == "ready" and not self._is_ready:
            self._is_ready = True
            freeze_objects()  # a collection over all that was loaded would hold up every request for 50 ms and more
            if self._link is not None:
                self._link.send_heartbeats()
        if self._link is not None:
            self.should_exit = self.should_exit or self._link.is_orphan()
        return await super().on_tick(counter) or state == "failed"

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running requests finish while new ones get 503, then close."""
        deadline = time.monotonic() + self._shutdown_timeout
        await self.lifecycle.drain(self._shutdown_timeout)
        # uvicorn's annotation says int, but passes the value to asyncio.wait_for, which takes floats.
        left = max(_LAST_BYTES_SECONDS, deadline - time.monotonic())
        self.config.timeout_graceful_shutdown = left  # type: ignore[assignment]
        await super().shutdown(sockets)


def http_protocol(client_timeout: float) -> "type[asyncio.Protocol]":
    """The protocol class for uvicorn, see `RequestProtocol`; the app must come from `build_app`."""
    return cast("type[asyncio.Protocol]", partial(RequestProtocol, client_timeout=client_timeout))


def duplicate(listener: socket.socket) -> list[socket.socket]:
    """Return a listening socket with duplicates of itself, to accept several connections per turn of the event loop.

    It accepts one connection per socket and turn. Under load a turn takes milliseconds, and connections in the backlog
    would wait one turn for each connection before them.
    """
    return [listener, *(listener.dup() for _ in range(_ACCEPTED_PER_TURN - 1))]


def _listen(settings: ServiceSettings) -> socket.socket:
    """Listen before loading: a port in use is reported at once, and early clients wait instead of failing."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _fail(name: str, message: str, exit_code: int) -> int:
    print(escape_unprintable(f"{name}: {message}"), file=sys.stderr)  # noqa: T201 - the reason for the exit
    return exit_code
