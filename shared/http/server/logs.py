"""Structured logging: lines of the services and of libraries, in one format on standard output."""

import contextlib
import io
import json
import logging
import sys
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

import orjson
import structlog

from shared.http.request_context import current_request
from shared.system.errors import escape_unprintable

if TYPE_CHECKING:
    from structlog.typing import Processor

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _StandardOutput(io.RawIOBase):
    """Standard output for whole lines; a full disk or a closed pipe must not fail the request that is logged."""

    def write(self, line: Any) -> int:
        with contextlib.suppress(OSError):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        return len(line)


def configure_logging(level: str, style: Literal["console", "json"]) -> None:
    """Send structlog and the standard library's loggers to standard output, as readable or JSON lines.

    The services' own lines bypass `logging`: at thousands of requests a second its records cost more than the
    requests.
    """
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        _add_request_id,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    final: list[Processor]
    if style == "json":
        final = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    elif sys.stdout.isatty():
        # Plain tracebacks: others show the variables of each frame, which may hold the text of users.
        final = [
            _escape,
            structlog.dev.ConsoleRenderer(colors=True, exception_formatter=structlog.dev.plain_traceback),
        ]
    else:
        final = [structlog.processors.format_exc_info, _plain_line]
    structlog.configure(
        processors=[*shared, *final, _as_bytes],
        logger_factory=structlog.BytesLoggerFactory(cast("BinaryIO", _StandardOutput())),
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final, _as_text],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[level])
    logging.getLogger("numba").setLevel(logging.WARNING)  # at debug level its compiler logs each step
    logging.getLogger("uvicorn.error").addFilter(_is_not_redundant)


def _is_not_redundant(record: logging.LogRecord) -> bool:
    """Skip uvicorn's line on an incomplete response: a failed stream ends so, and its request's line has the reason."""
    return record.getMessage() != "ASGI callable returned without completing response."


def _add_request_id(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    context = current_request.get()
    if context is not None:
        event.setdefault("id", context.id)
    return event


def _plain_line(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    """A line like structlog's console renderer, in a tenth of the time: one is written for each request."""
    stamp, level, logger = event.pop("timestamp"), event.pop("level"), event.pop("logger", "")
    what, exception = escape_unprintable(str(event.pop("event"))), event.pop("exception", None)
    fields = " ".join([f"{name}={_console_value(value)}" for name, value in event.items()])
    line = f"{stamp} [{level:<9}] {what:<30} [{logger}] {fields}".rstrip()
    return line if exception is None else f"{line}\n{exception}"


def _escape(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {name: escape_unprintable(value) if isinstance(value, str) else value for name, value in event.items()}


def _console_value(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if text.isprintable() and " " not in text else repr(text)


def _json(event: Any, default: Callable[[Any], Any]) -> bytes:
    try:
        return orjson.dumps(event, default=default)
    except TypeError:  # a lone surrogate or a huge integer, which orjson refuses
        return json.dumps(event, default=default).encode()


def _as_bytes(_logger: Any, _method: str, line: Any) -> bytes:
    return line if isinstance(line, bytes) else str(line).encode(errors="backslashreplace")


def _as_text(_logger: Any, _method: str, line: Any) -> str:
    return line.decode() if isinstance(line, bytes) else str(line)
