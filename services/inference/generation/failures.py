"""What the engine's errors are to HTTP clients."""

from services.inference.engine import (
    EngineError,
    EngineUnavailableError,
    QueueFullError,
    RequestTimeoutError,
    RequestTooLargeError,
)
from shared.http import ApiError

_STATUS: dict[type[EngineError], int] = {
    QueueFullError: 429,
    EngineUnavailableError: 503,
    RequestTimeoutError: 504,
    RequestTooLargeError: 400,
}
_COME_AGAIN = {"Retry-After": "1"}


def as_api_error(error: EngineError) -> ApiError:
    """The message has the true cause; 429 and 503 say when to come again, and what nobody foresaw is a 500."""
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
    headers = _COME_AGAIN if status in (429, 503) else None
    return ApiError(status, str(error), code=error.code, headers=headers)
