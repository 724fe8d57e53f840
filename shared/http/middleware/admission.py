"""The way of a request to its route: refused by its head, limited in its body, and answered if it fails."""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.http.errors import ApiError, error_response, internal_error, server_refusal, short_json
from shared.http.middleware.body_limit import Exchange, MemoryBudget
from shared.http.request_context import current_request

_log = structlog.get_logger("ownlm.http")

_SINGLE = frozenset({b"host", b"content-type", b"content-encoding", b"authorization", b"transfer-encoding"})
_MAX_CONTENT_TYPE = 256  # Python's parser of parameters takes quadratic time in their number
_HOST = re.compile(rb"(\[[0-9a-fA-F:.]+\]|[^:/?#@\s\[\]]*)(?::\d*)?")

HeadCheck: TypeAlias = Callable[[Scope, Mapping[bytes, bytes]], ApiError | None]
"""Why a request is refused, from its scope and its headers by name; None if it is not."""


class AdmissionMiddleware:
    """Refuses a request by its head, or passes it on within the limits of `Exchange`.

    Exceptions become responses here: Starlette would send them outside of all middleware, without the request's id and
    the CORS headers.

    Args:
        app: The app.
        checks: After what the server refused, the first one that returns an error decides. No body is read before.
        max_body_bytes: The largest request body.
        budget: For large bodies and responses of all requests together.
    """

    def __init__(self, app: ASGIApp, checks: Sequence[HeadCheck], max_body_bytes: int, budget: MemoryBudget) -> None:
        self._app = app
        self._checks = checks
        self._max_body_bytes = max_body_bytes
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = current_request.get()
        assert context is not None
        error = server_refusal(scope)
        for check in self._checks:
            error = error or check(scope, context.headers)
        if error is not None:
            await error_response(error)(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self._max_body_bytes, self._budget)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except ApiError as raised:
            # Its traceback holds the body, and has cycles: a future's error has the frame that awaits it. Megabytes
            # would wait for the collector with each refusal.
            error = raised.with_traceback(None)
        except Exception:
            _log.exception("request failed")
            error = internal_error()
        finally:
            exchange.end()
        # After the first byte of a response, the server can only close the connection.
        if error is not None and context.status is None:
            await error_response(error)(scope, receive, send)


def check_headers(allowed_hosts: frozenset[str] | None, scope: Scope, values: Mapping[bytes, bytes]) -> ApiError | None:
    """Why a request is refused because of its headers; None if it is not.

    Args:
        allowed_hosts: The names, without ports, that `Host` may have; None allows all. Otherwise a web page could call
            a service on this machine through a host name of its own (DNS rebinding). An address in numbers has no
            name that could have been changed, and is always allowed: Prometheus and probes use it.
        scope: The request's ASGI scope.
        values: Its headers by name.
    """
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    if len(values) < len(headers):
        counts = Counter(name for name, _ in headers)
        name = next((name for name in counts if counts[name] > 1 and name in _SINGLE), None)
        if name is not None:
            return _malformed(f"the header {name.decode().title()!r} occurs {counts[name]} times: send it once")
    content_type = values.get(b"content-type", b"")
    if len(content_type) > _MAX_CONTENT_TYPE:
        return _malformed(
            f"the header 'Content-Type' of {len(content_type):,} bytes exceeds the limit of {_MAX_CONTENT_TYPE}"
        )
    coding = values.get(b"transfer-encoding", b"chunked")
    if coding.strip().lower() != b"chunked":
        message = f"send the body without a transfer coding, or chunked (got {short_json(coding.decode('latin-1'))})"
        return ApiError(501, message, code="transfer_coding_not_supported", headers={"Connection": "close"})
    return _check_host(values.get(b"host"), scope["http_version"], allowed_hosts)


def _check_host(value: bytes | None, http_version: str, allowed_hosts: frozenset[str] | None) -> ApiError | None:
    if value is None and http_version == "1.1":
        return _malformed("the header 'Host' is missing (RFC 9112, 3.2)")
    name = _host_name(value or b"")
    if name is None:
        return _malformed(f"the header 'Host' is not a host name (got {short_json((value or b'').decode('latin-1'))})")
    if allowed_hosts is None or name in allowed_hosts or (value is None and http_version == "1.0") or _is_address(name):
        return None
    message = f"the host {short_json(name)} is not allowed: add it to OWNLM_ALLOWED_HOSTS"
    return ApiError(400, message, code="host_not_allowed", headers={"Connection": "close"})


@lru_cache(maxsize=16)
def _host_name(value: bytes) -> str | None:
    """The name without a port; None if the header has another form."""
    host = _HOST.fullmatch(value)
    return None if host is None else host[1].decode("latin-1").lower().removesuffix(".")


@lru_cache(maxsize=16)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _malformed(message: str) -> ApiError:
    return ApiError(400, message, code="malformed_headers", headers={"Connection": "close"})
