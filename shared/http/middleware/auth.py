"""Require an API key."""

from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from shared.http.errors import ApiError, error_response
from shared.http.middleware.api_keys import ApiKeys
from shared.http.probes import HEALTH_PATHS


class AuthMiddleware:
    """Answers 401 unless a request has `Authorization: Bearer KEY` with one of `keys`; health checks are exempt."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it without reading its body."""
        if scope["type"] == "lifespan" or scope["path"] in HEALTH_PATHS:
            await self._app(scope, receive, send)
            return
        key = _bearer(scope["headers"])
        if key is not None and self._keys.accepts(key):
            await self._app(scope, receive, send)
            return
        await error_response(_unauthorized(key))(scope, receive, send)


def _bearer(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The key of a request, or None; only the first `Authorization` header counts."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            return key.strip() if scheme.lower() == b"bearer" else None
    return None


def _unauthorized(key: bytes | None) -> ApiError:
    if key is None:
        message = "an API key is required: send the header 'Authorization: Bearer KEY'"
        return ApiError(401, message, code="missing_api_key", headers={"WWW-Authenticate": 'Bearer realm="ownlm"'})
    challenge = 'Bearer realm="ownlm", error="invalid_token"'
    return ApiError(401, "unknown API key", code="invalid_api_key", headers={"WWW-Authenticate": challenge})
