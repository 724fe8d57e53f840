"""An app with one route on top of what both services share."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import uvicorn
from fastapi import FastAPI, Request

from shared.http import (
    ApiError,
    BodyRoute,
    HttpMetrics,
    Lifecycle,
    ServiceSettings,
    StrictModel,
    add_body_routes,
    build_app,
)
from shared.http.server.run import http_protocol


def _drop(*_: object) -> Any:
    raise structlog.DropEvent


@pytest.fixture(scope="session", autouse=True)
def _quiet() -> Iterator[None]:
    """Log nothing: servers in threads outlive pytest's capture, and structlog's own tracebacks take seconds."""
    structlog.configure(processors=[_drop])
    yield
    structlog.reset_defaults()


class EchoRequest(StrictModel):
    text: str = ""
    number: float = 0.0
    whole: int = 0


class Settings(ServiceSettings):
    port: int = 0


@pytest.fixture
def build() -> Callable[..., FastAPI]:
    """Build the app: `build(load=..., max_body_bytes=...)`; `POST /echo` answers with what it read."""

    def make(load: Callable[[], Any] = lambda: "resource", **settings: Any) -> FastAPI:
        lifecycle = Lifecycle(load)
        app = build_app(
            Settings(model_dir=Path("model"), **{"allowed_hosts": "*", **settings}),
            lifecycle,
            HttpMetrics(),
            title="t",
            description="d",
            version="0",
            pages="services.tokenizer.pages",
        )

        async def echo(body: EchoRequest, _request: Request) -> bytes:
            return body.model_dump_json().encode()

        add_body_routes(app, BodyRoute("/echo", echo))

        @app.get("/items/{name}")
        async def item(name: str) -> str:
            if name == "broken":
                raise RuntimeError("secret detail")
            if name == "busy":
                raise ApiError(429, "too many", param="name", code="full", headers={"Retry-After": "3"})
            return str(lifecycle.resource)

        return app

    return make


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[str, int]]]:
    """Serve an app on a real socket from a thread, as a service would: `serve(app, client_timeout=...)`."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(app: FastAPI, *, client_timeout: float = 600) -> tuple[str, int]:
        protocol = http_protocol(client_timeout)
        server = uvicorn.Server(uvicorn.Config(app, http=protocol, port=0, log_config=None))
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        host, port, *_ = server.servers[0].sockets[0].getsockname()

        @app.get("/open")
        async def count() -> int:
            return len(server.server_state.connections)

        return host, port

    yield start
    for server, _ in running:
        server.should_exit = True
    for _, thread in running:
        thread.join(240)
        assert not thread.is_alive(), "a connection holds up the end"


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()
