"""Request headers that would be ambiguous or unsupported, and the host names that a service answers to."""

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from starlette.types import Scope

from shared.http.errors import ApiError, shorten

_SINGLE = frozenset({b"host", b"content-type", b"content-encoding", b"authorization", b"transfer-encoding"})
_MAX_CONTENT_TYPE = 256  # Python's parser of parameters takes quadratic time in their number
_HOST = re.compile(rb"(\[[0-9a-fA-F:.]+\]|[^:/?#@\s\[\]]*)(?::\d*)?")


def check_headers(allowed_hosts: frozenset[str] | None, scope: Scope, values: Mapping[bytes, bytes]) -> ApiError | None:
    """Why a request is refused because of its headers; None if it is not.

    Args:
        allowed_hosts: The names, without ports, that `Host` may have; None allows all. Otherwise a web page could call
            a service on this machine through a host name of its own (DNS rebinding).
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
            f"the header 'Content-Type' has {len(content_type):,} bytes, the limit is {_MAX_CONTENT_TYPE}"
        )
    coding = values.get(b"transfer-encoding", b"chunked")
    if coding.strip().lower() != b"chunked":
        message = f"send the body without a transfer coding, or chunked (got {shorten(coding.decode('latin-1'))})"
        return ApiError(501, message, code="transfer_coding_not_supported", headers={"Connection": "close"})
    return _check_host(values.get(b"host"), scope["http_version"], allowed_hosts)


def _check_host(value: bytes | None, http_version: str, allowed_hosts: frozenset[str] | None) -> ApiError | None:
    if value is None and http_version == "1.1":
        return _malformed("the header 'Host' is missing (RFC 9112, 3.2)")
    name = _host_name(value or b"")
    if name is None:
        return _malformed(f"the header 'Host' is not a host name (got {shorten((value or b'').decode('latin-1'))})")
    if allowed_hosts is None or name in allowed_hosts or (value is None and http_version == "1.0"):
        return None
    message = f"the host {shorten(name)} is not allowed: add it to OWNLM_ALLOWED_HOSTS"
    return ApiError(400, message, code="host_not_allowed", headers={"Connection": "close"})


@lru_cache(maxsize=16)
def _host_name(value: bytes) -> str | None:
    """The name without a port; None if the header has another form."""
    host = _HOST.fullmatch(value)
    return None if host is None else host[1].decode("latin-1").lower().removesuffix(".")


def _malformed(message: str) -> ApiError:
    return ApiError(400, message, code="malformed_headers", headers={"Connection": "close"})
