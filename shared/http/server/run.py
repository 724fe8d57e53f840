"""Run a service: settings, logging, socket, server, and an orderly end."""

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
from shared.http.server.workers import EXIT_FAILED, WorkerLink, WorkersFailedError, supervise
from shared.http.settings import LOCAL_ADDRESSES, ServiceSettings, SettingsError, SettingsT, load_settings
from shared.system.allocation import freeze_objects, give_back_freed_memory
from shared.system.errors import printable

if TYPE_CHECKING:
    from shared.http.lifecycle import Lifecycle

EXIT_USAGE = 2

_KEEP_ALIVE_SECONDS = 75  # longer than the 60 s after which common proxies drop an idle connection themselves
_LAST_BYTES_SECONDS = 1.0
_BACKLOG = 2048  # uvicorn's
_ACCEPTED_A_TURN = 16


def run(create_app: Callable[[SettingsT], FastAPI], settings_class: type[SettingsT], name: str) -> NoReturn:
    """Serve until SIGTERM or Ctrl-C, then end the process.

    Faults that a person can mend are one sentence on standard error. The exit code is 0 after an orderly end, 1 where
    the model or the port could not be had, and 2 for wrong settings.
    """
    code = _run(create_app, settings_class, name)
    sys.stdout.flush()
    sys.stderr.flush()
    # By now all is closed. The interpreter would take seconds more to take a large library down, and a model that is
    # still being loaded in its thread would be pulled from under it.
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
        log.warning("no API keys are set: whoever reaches the port may use it", host=settings.host)
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
    # Workers share out what waits among them, each one connection at a time.
    server.run(sockets=[listener] if link is not None else several(listener))
    state, reason = server.lifecycle.status()
    return _fail(name, str(reason), EXIT_FAILED) if state == "failed" else 0


def _supervise(settings: ServiceSettings, name: str, listener: socket.socket) -> int:
    try:
        return supervise(listener, settings.processes, settings.shutdown_timeout)
    except WorkersFailedError as error:
        return _fail(name, str(error), EXIT_FAILED)


class _Server(uvicorn.Server):
    """uvicorn, with three changes: it drains before it closes, ends when loading failed, and exits 0 on SIGTERM.

    A worker also tells its supervisor when it serves, and ends when that is gone.
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
                proxy_headers=False,  # nothing here asks for the client's address
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            )
        )
        self.lifecycle: Lifecycle[Any] = app.state.lifecycle
        self.lifecycle.loads_first = link is not None and not link.is_first
        self._link = link
        self._is_ready = False
        self._shutdown_timeout = settings.shutdown_timeout

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """The first signal asks for an orderly end; the second one ends the process as if nothing handled it."""
        if self.should_exit:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Also log what the event loop meets."""
        asyncio.get_running_loop().set_exception_handler(file_descriptors.log_error)
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Also stop where there will never be anything to serve, and where a worker has lost its supervisor."""
        state = self.lifecycle.status()[0]
        if state == "ready" and not self._is_ready:
            self._is_ready = True
            self._settle()
        if self._link is not None:
            self.should_exit = self.should_exit or self._link.is_orphan()
        return await super().on_tick(counter) or state == "failed"

    def _settle(self) -> None:
        """All is loaded: what is there now stays."""
        # To look at it takes the collector 50 ms and more, in which nobody is answered; so not even once, before.
        freeze_objects()
        if self._link is not None:
            self._link.tell_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running requests finish while new ones are told 503, then close."""
        deadline = time.monotonic() + self._shutdown_timeout
        await self.lifecycle.drain(self._shutdown_timeout)
        # A float is right where uvicorn's annotation says int: it is passed to asyncio.wait_for.
        left = max(_LAST_BYTES_SECONDS, deadline - time.monotonic())
        self.config.timeout_graceful_shutdown = left  # type: ignore[assignment]
        await super().shutdown(sockets)


def http_protocol(client_timeout: float) -> "type[asyncio.Protocol]":
    """Return what uvicorn makes of each connection; see `ReservingProtocol`. The app must be one of `build_app`."""
    return cast("type[asyncio.Protocol]", partial(file_descriptors.ReservingProtocol, client_timeout=client_timeout))


def several(listener: socket.socket) -> list[socket.socket]:
    """Return a socket with copies of itself, to be watched like so many.

    libuv accepts one connection of each in a turn of the event loop. In a storm a turn takes milliseconds, and those
    behind would wait as many turns as there are before them.
    """
    return [listener, *(listener.dup() for _ in range(_ACCEPTED_A_TURN - 1))]


def _listen(settings: ServiceSettings) -> socket.socket:
    """Listen before anything is loaded: a busy port is told at once, and who comes early waits instead of failing."""
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
    print(printable(f"{name}: {message}"), file=sys.stderr)  # noqa: T201 - the process' last word, for a person
    return exit_code
