"""Answers that the app does not give: refusals by the server or for ambiguous headers, and 500."""

import re
from collections import Counter

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.http.errors import ApiError, error_response, shorten
from shared.http.request_context import current_request

_log = structlog.get_logger("ownlm.http")

REFUSAL = "ownlm.refusal"
"""The extension of a request's scope in which the server leaves the `ApiError` that the request gets."""

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})

_SINGLE = frozenset({b"host", b"content-type", b"content-encoding", b"authorization", b"transfer-encoding"})
_MAX_CONTENT_TYPE = 256  # Python's parser of parameters takes time with the square of their number
_HOST = re.compile(rb"(\[[0-9a-fA-F:.]+\]|[^:/?#@\s\[\]]*)(?::\d*)?")


def refusal_of(scope: Scope) -> ApiError | None:
    """Why the server refuses a request; None where it does not, or does not yet."""
    error: ApiError | None = (scope.get("extensions") or {}).get(REFUSAL, {}).get("error")
    return error


class RefusalMiddleware:
    """Answers what the server refuses, refuses requests whose headers can be read in two ways, and answers 500.

    Starlette would answer 500 outside of all middleware, without the request's id and what lets a page read it.

    Args:
        app: The app.
        allowed_hosts: The names, without ports, by which clients may call the service; None allows all. Pages of other
            sites could otherwise call a service of this machine by a name of theirs (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, allowed_hosts: frozenset[str] | None) -> None:
        self._app = app
        self._allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it without reading its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        error = refusal_of(scope) or self._check(scope)
        if error is None:
            try:
                await self._app(scope, receive, send)
            except Exception:
                _log.exception("request failed")
                record = current_request.get()
                if record is not None and record.status is not None:
                    return  # the answer has begun: the server cuts it off
                error = ApiError(500, "internal error; the server's log has the details")
        if error is not None:
            await error_response(error)(scope, receive, send)

    def _check(self, scope: Scope) -> ApiError | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        values = dict(headers)
        if len(values) < len(headers):
            counts = Counter(name for name, _ in headers)
            name = next((name for name in counts if counts[name] > 1 and name in _SINGLE), None)
            if name is not None:
                return _malformed(f"the header {name.decode().title()!r} is there {counts[name]} times: send it once")
        if len(values.get(b"content-type", b"")) > _MAX_CONTENT_TYPE:
            size = len(values[b"content-type"])
            return _malformed(f"the header 'Content-Type' has {size:,} bytes, the limit is {_MAX_CONTENT_TYPE}")
        coding = values.get(b"transfer-encoding", b"chunked").strip().lower()
        if coding != b"chunked":
            message = f"send the body without a transfer coding, or chunked (got {shorten(coding.decode('latin-1'))})"
            return ApiError(501, message, code="transfer_coding_not_supported", headers={"Connection": "close"})
        return self._check_host(values.get(b"host"), scope["http_version"])

    def _check_host(self, given: bytes | None, http_version: str) -> ApiError | None:
        if given is None and http_version == "1.1":
            return _malformed("the header 'Host' is missing (RFC 9112, 3.2)")
        host = _HOST.fullmatch(given or b"")
        if host is None:
            return _malformed(
                f"the header 'Host' is not a host's name (got {shorten((given or b'').decode('latin-1'))})"
            )
        name = host[1].decode("latin-1").lower().removesuffix(".")
        if self._allowed_hosts is None or name in self._allowed_hosts or (given is None and http_version == "1.0"):
            return None
        message = f"this service does not answer to the host {shorten(name)}: OWNLM_ALLOWED_HOSTS names those that may"
        return ApiError(400, f"{message} call it", code="host_not_allowed", headers={"Connection": "close"})


def _malformed(message: str) -> ApiError:
    return ApiError(400, message, code="malformed_headers", headers={"Connection": "close"})
