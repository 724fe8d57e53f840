"""Cross-origin requests: which web pages may call a service from a browser."""

from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from shared.http.settings import ServiceSettings, SettingsError, listed

# All response headers of both services beyond those that every page may read.
_READABLE_HEADERS = ["X-Request-ID", "Retry-After", "X-Token-Count", "X-Token-Dtype", "X-Tokenizer-Fingerprint"]


def add_cors(app: FastAPI, settings: ServiceSettings) -> None:
    """Let pages of the origins in `OWNLM_CORS_ORIGINS` call `app`; browsers block all others.

    Raises:
        SettingsError: An entry of the list is not an origin.
    """
    origins = listed(settings.cors_origins or "")
    for origin in origins:
        _check(origin)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=_READABLE_HEADERS,
        )


def _check(origin: str) -> None:
    """Refuse what no browser sends as an origin: it would silently match no page."""
    parts = urlsplit(origin)
    if origin != "*" and (not parts.scheme or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}"):
        raise SettingsError(
            f"OWNLM_CORS_ORIGINS: {origin!r} is not an origin; write scheme, host and port without a path, "
            "as in https://app.example.com, or * for all"
        )
