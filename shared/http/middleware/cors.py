"""Which web pages may call a service from a browser."""

from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from shared.http.settings import ServiceSettings, SettingsError

# All that answers of either service carry beside the headers that any page may read.
_READABLE_HEADERS = ["X-Request-ID", "Retry-After", "X-Token-Count", "X-Token-Dtype", "X-Tokenizer-Fingerprint"]


def allow_origins(app: FastAPI, settings: ServiceSettings) -> None:
    """Let pages of `OWNLM_CORS_ORIGINS` call `app`; where it is not set, browsers let none.

    Raises:
        SettingsError: Something in the list is no origin.
    """
    origins = (settings.cors_origins or "").replace(",", " ").split()
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
    """Refuse what a browser would never send: it would be matched never, and nobody would be told."""
    parts = urlsplit(origin)
    if origin != "*" and (not parts.scheme or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}"):
        raise SettingsError(
            f"OWNLM_CORS_ORIGINS: {origin!r} is no origin; write scheme, host and port without a path, "
            "as in https://app.example.com, or * for all"
        )
