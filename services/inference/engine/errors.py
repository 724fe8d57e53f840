"""What the engine raises, and what a failed sequence reports."""

from typing import ClassVar

NO_DISTRIBUTION = "there is no distribution to sample from: the model's logits are NaN or infinite"
"""Why a sequence fails whose logits hold NaN, infinity, or nothing finite."""


class EngineError(Exception):
    """The engine could not finish a request; the message is the cause.

    Attributes:
        code: A stable name for programs.
    """

    code: ClassVar[str] = "generation_failed"


class EngineUnavailableError(EngineError):
    """The engine takes no requests now: it is shutting down, being restarted, or it failed for good."""

    code = "engine_unavailable"


class EngineRestartedError(EngineUnavailableError):
    """The engine process ended and is being restarted; the request may be sent again."""

    code = "engine_restarted"


class QueueFullError(EngineError):
    """The queue is full."""

    code = "queue_full"


class QueueTimeoutError(EngineUnavailableError):
    """The request waited in the queue longer than the limit."""

    code = "queue_timeout"


class RequestTimeoutError(EngineError):
    """The request ran longer than the limit."""

    code = "request_timeout"


class RequestTooLargeError(EngineError):
    """The request can never run here; the message names the limit."""

    code = "request_too_large"


class UnsupportedFieldError(EngineError):
    """A field of the request has a value that this engine does not have.

    Attributes:
        field: Its name in the API.
    """

    code = "unsupported_by_engine"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


class LoadError(ValueError):
    """The model could not be loaded.

    Attributes:
        reported: Whether the engine process reported a reason before it ended.
        transient: Whether another attempt may succeed, as where a process that has ended still holds memory of a GPU.
    """

    def __init__(self, message: str, *, reported: bool, transient: bool = False) -> None:
        super().__init__(message)
        self.reported = reported
        self.transient = transient


class LoadTimeoutError(LoadError):
    """The engine process takes longer to load the model than the limit; it still runs."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the model was not loaded within {seconds:g} seconds (OWNLM_LOAD_TIMEOUT)",
            reported=False,
            transient=True,
        )
