"""The common part of both services' FastAPI apps: middleware, error handlers, probes and metrics."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from shared.http.body_route import operation_id
from shared.http.document import complete_document
from shared.http.errors import ApiError, install_error_handlers
from shared.http.lifecycle import Lifecycle
from shared.http.metrics import HttpMetrics
from shared.http.middleware.access_log import AccessLogMiddleware
from shared.http.middleware.admission import AdmissionMiddleware
from shared.http.middleware.api_keys import ApiKeys
from shared.http.middleware.auth import AuthMiddleware
from shared.http.middleware.body_limit import BodyLimitMiddleware, MemoryBudget
from shared.http.middleware.cors import add_cors
from shared.http.middleware.errors import ErrorMiddleware
from shared.http.middleware.tracing import TracingMiddleware, make_tracer_provider, shut_down_provider
from shared.http.probes import add_probes
from shared.http.settings import ServiceSettings


def build_app(
    settings: ServiceSettings,
    lifecycle: Lifecycle[Any],
    metrics: HttpMetrics,
    *,
    title: str,
    description: str,
    version: str,
    refusal: Callable[[str, str], ApiError | None] | None = None,
) -> FastAPI:
    """Create an app with everything except the service's own routes.

    The server drains `app.state.lifecycle` at shutdown, and counts in `app.state.metrics`.

    Args:
        settings: The service's settings.
        lifecycle: Loads and drains what the service needs.
        metrics: Where requests are counted.
        title: The title of the OpenAPI document; with hyphens, the service's name in traces.
        description: The description in the OpenAPI document.
        version: The version in the OpenAPI document.
        refusal: May refuse a request by its method and path, before its body is read.

    Raises:
        SettingsError: The API keys, the CORS origins or the traces endpoint are invalid.
    """
    provider = make_tracer_provider(settings, title.replace(" ", "-"))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with lifecycle.lifespan(app):
            yield
        if provider is not None:
            shut_down_provider(provider)

    # FastAPI's own search for a tracer at each request takes as long as encoding a sentence; ours is below.
    app = FastAPI(
        title=title,
        description=description,
        version=version,
        lifespan=lifespan,
        telemetry={"tracing": False, "metrics": False, "logs": False},
        generate_unique_id_function=operation_id,
    )
    app.state.lifecycle = lifecycle
    app.state.metrics = metrics
    install_error_handlers(app)
    # The last one added is the outermost: all refusals are logged, and have CORS headers.
    budget = MemoryBudget(settings.memory_in_flight)
    app.add_middleware(BodyLimitMiddleware, max_bytes=settings.max_body_bytes, budget=budget)
    if refusal is not None:
        app.add_middleware(AdmissionMiddleware, refusal=refusal)
    keys = ApiKeys.from_settings(settings)
    if keys is not None:
        app.add_middleware(AuthMiddleware, keys=keys)
    app.add_middleware(ErrorMiddleware, allowed_hosts=settings.hosts)
    add_cors(app, settings)
    if provider is not None:
        app.add_middleware(TracingMiddleware, provider=provider)
    app.add_middleware(AccessLogMiddleware, metrics=metrics)
    complete_document(app, keys=keys is not None)
    add_probes(app, lifecycle, metrics)
    return app
