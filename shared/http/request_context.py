"""What is known of the request at hand: handlers add to it, the request's log line and its trace show it."""

import random
import time
from contextvars import ContextVar
from typing import TypeAlias

Note: TypeAlias = str | int | float | bool | list[str]

_MAX_REQUEST_ID = 128


class RequestRecord:
    """One request's id, and what its handlers noted.

    Attributes:
        id: The client's `X-Request-ID`, or one that was made.
        started: When its head had come, on the clock of `time.perf_counter`.
        status: That of its answer, once this has begun.
        failed_status: What counts instead, where the service leaves an answer incomplete.
        error_code: The stable name of the error that it was answered with.
        notes: Further fields of its log line; never a prompt or an answer, unless `OWNLM_LOG_PROMPTS` asks for them.
    """

    __slots__ = ("error_code", "failed_status", "id", "notes", "started", "status")

    def __init__(self, given_id: bytes | None = None) -> None:
        self.id = _usable(given_id) or f"{random.getrandbits(128):032x}"
        self.started = time.perf_counter()
        self.status: int | None = None
        self.error_code: str | None = None
        self.failed_status: int | None = None
        self.notes: dict[str, Note] = {}


current_request: ContextVar[RequestRecord | None] = ContextVar("current_request", default=None)


def note(**values: Note) -> None:
    """Add fields to the log line and the trace of the request that is being served, if there is one."""
    record = current_request.get()
    if record is not None:
        record.notes.update(values)


def note_error(code: str | None, failed_status: int | None = None) -> None:
    """Say why the request at hand is refused or ends early: its log line and the count of refusals name it.

    Args:
        code: The stable name of the error, where it has one.
        failed_status: What counts as its status, where its answer has begun and will stay incomplete.
    """
    record = current_request.get()
    if record is not None:
        record.error_code = code
        record.failed_status = failed_status


def request_started() -> float:
    """When the request at hand came, on the clock of `time.perf_counter`; now, where there is none."""
    record = current_request.get()
    return time.perf_counter() if record is None else record.started


def _usable(given: bytes | None) -> str:
    """A client's id where it cannot spoil a log; else nothing."""
    if not given or len(given) > _MAX_REQUEST_ID:
        return ""
    text = given.decode("latin-1")
    return text if text.isprintable() else ""
