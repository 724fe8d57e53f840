"""HTTP errors for the engine's errors."""

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
_RETRY_AFTER = {"Retry-After": "1"}


def to_api_error(error: EngineError) -> ApiError:
    """Keep the engine's message and code; 429 and 503 get `Retry-After`, and other errors are a 500."""
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
    return ApiError(status, str(error), code=error.code, headers=_RETRY_AFTER if status in (429, 503) else None)
