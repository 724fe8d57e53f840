"""Connections leave some file descriptors to the service, and running out of them is logged once a minute."""

import asyncio
import resource
import time
from typing import Any

import structlog

_log = structlog.get_logger("ownlm.descriptors")

# For what the service opens while it runs: a process that replaces another, files that changed.
_RESERVED = 16
_LOG_SECONDS = 60.0
_EXHAUSTED = "socket.accept() out of system resource"  # asyncio's message, thousands of times

_silent_until = 0.0


def is_reserved(connection: Any) -> bool:
    """Whether a connection's socket has one of the last descriptors; None, for no socket, has not.

    The system assigns the lowest free number: a high one means that few are left.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if connection is None or connection.fileno() < limit - _RESERVED:
        return False
    _log_exhaustion(limit)
    return True


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
