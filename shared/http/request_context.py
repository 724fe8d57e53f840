"""The context of the request being served: its id, its times, and the fields that handlers add to its log line."""

import random
import time
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TypeAlias

LogField: TypeAlias = str | int | float | bool | list[str]

_MAX_REQUEST_ID = 128


class RequestContext:
    """What is known about one request.

    Attributes:
        headers: Its headers by name; the last one where a name occurs twice.
        id: The client's `X-Request-ID`, or a generated one.
        started: When its head was received, on the clock of `time.perf_counter`.
        status: The status of its response, once this has begun.
        failed_status: The status to log instead, where the service leaves a response incomplete.
        error_code: The stable name of the error that it was answered with.
        log_fields: Further fields of its log line and span; never a prompt or a completion, unless `OWNLM_LOG_PROMPTS`
            asks for them.
    """

    __slots__ = ("error_code", "failed_status", "headers", "id", "log_fields", "started", "status")

    def __init__(self, headers: Mapping[bytes, bytes] = MappingProxyType({})) -> None:
        self.headers = headers
        self.id = _printable_id(headers.get(b"x-request-id")) or f"{random.getrandbits(128):032x}"
        self.started = time.perf_counter()
        self.status: int | None = None
        self.error_code: str | None = None
        self.failed_status: int | None = None
        self.log_fields: dict[str, LogField] = {}


current_request: ContextVar[RequestContext | None] = ContextVar("current_request", default=None)


def add_log_fields(**fields: LogField) -> None:
    """Add fields to the log line and the span of the current request, if there is one."""
    context = current_request.get()
    if context is not None:
        context.log_fields.update(fields)


def record_error(code: str | None, failed_status: int | None = None) -> None:
    """Record why the current request is refused or ends early, for its log line, its span and the refusal counter.

    Args:
        code: The stable name of the error, where it has one.
        failed_status: The status to log, where the response has begun and will stay incomplete.
    """
    context = current_request.get()
    if context is not None:
        context.error_code = code
        context.failed_status = failed_status


def request_started() -> float:
    """When the current request was received, on the clock of `time.perf_counter`; now, outside of a request."""
    context = current_request.get()
    return time.perf_counter() if context is None else context.started


def _printable_id(client_id: bytes | None) -> str:
    """A client's id if it is short and printable, so that it cannot forge log lines; else the empty string."""
    if not client_id or len(client_id) > _MAX_REQUEST_ID:
        return ""
    text = client_id.decode("latin-1")
    return text if text.isprintable() else ""
