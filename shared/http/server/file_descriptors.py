"""Connections leave some file descriptors to the service, and their end is logged once a minute."""

import asyncio
import resource
import time
from typing import Any

import structlog

from shared.http.server.protocol import RequestProtocol

_log = structlog.get_logger("ownlm.descriptors")

# For what the service opens while it runs: a process in place of one that ended, files that changed.
_RESERVED = 16
_LOG_SECONDS = 60.0
_EXHAUSTED = "socket.accept() out of system resource"  # what asyncio says, thousands of times

_silent_until = 0.0


class ReservingProtocol(RequestProtocol):
    """Closes a connection that takes one of the last descriptors; those that were accepted before go on."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The system gives the lowest free number: a high one says that few are left."""
        super().connection_made(transport)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if transport.get_extra_info("socket").fileno() >= limit - _RESERVED:
            _log_exhaustion(limit)
            transport.abort()


def log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The event loop's exception handler."""
    if context.get("message") == _EXHAUSTED:
        _log_exhaustion(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    else:
        loop.default_exception_handler(context)


def _log_exhaustion(limit: int) -> None:
    global _silent_until  # noqa: PLW0603  # as the limit, it is the process's
    if time.monotonic() >= _silent_until:
        _silent_until = time.monotonic() + _LOG_SECONDS
        _log.error("no file descriptors are left for new connections", limit=limit, hint="raise it (ulimit -n)")
