"""The part of a FastAPI app that both services have: middleware, errors, probes and metrics."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from shared.http.admission import AdmissionMiddleware
from shared.http.api_keys import ApiKeys
from shared.http.auth import AuthMiddleware, document_keys
from shared.http.body_limit import BodyLimitMiddleware
from shared.http.cors import allow_origins
from shared.http.errors import ApiError, error_responses, install_error_handlers
from shared.http.json_body import JsonRoute
from shared.http.lifecycle import Lifecycle, not_ready
from shared.http.metrics import HttpMetrics
from shared.http.observe import ObserveMiddleware
from shared.http.settings import ServiceSettings
from shared.http.tracing import TracingMiddleware, make_tracer_provider, send_last_spans


class ProbeResponse(BaseModel):
    """A service's answer to a health check."""

    status: Literal["alive", "ready"]


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
    """Create an app with everything but the service's own routes.

    `app.state.lifecycle` is what `shared.http.run` drains at the end, and `app.state.metrics` where it counts.

    `refusal` may refuse a request by its method and path, before its body is read.

    Raises:
        SettingsError: The API keys, the origins or the place for traces cannot be used.
    """
    provider = make_tracer_provider(settings, title.replace(" ", "-"))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with lifecycle.lifespan(app):
            yield
        if provider is not None:
            send_last_spans(provider)

    # FastAPI looks for somebody's tracing at each request, which takes as long as to encode a sentence; ours is below.
    app = FastAPI(
        title=title,
        description=description,
        version=version,
        lifespan=lifespan,
        telemetry={"tracing": False, "metrics": False, "logs": False},
        generate_unique_id_function=lambda route: route.name,  # what client generators name their functions by
    )
    app.router.route_class = JsonRoute
    app.state.lifecycle = lifecycle
    app.state.metrics = metrics
    install_error_handlers(app)
    # The last one added is the outermost: all refusals are observed, and a browser's page may read them.
    app.add_middleware(BodyLimitMiddleware, max_bytes=settings.max_body_bytes)
    if refusal is not None:
        app.add_middleware(AdmissionMiddleware, refusal=refusal)
    keys = ApiKeys.from_settings(settings)
    if keys is not None:
        app.add_middleware(AuthMiddleware, keys=keys)
        document_keys(app)
    allow_origins(app, settings)
    if provider is not None:
        app.add_middleware(TracingMiddleware, provider=provider)
    app.add_middleware(ObserveMiddleware, metrics=metrics)
    _add_probes(app, lifecycle, metrics)
    return app


def _add_probes(app: FastAPI, lifecycle: Lifecycle[Any], metrics: HttpMetrics) -> None:
    # Load balancers ask with HEAD. The server leaves the body out.
    @app.head("/livez", include_in_schema=False)
    @app.get("/livez", tags=["operations"])
    async def livez() -> ProbeResponse:
        """Whether the process answers at all; true while loading and draining."""
        return ProbeResponse(status="alive")

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", tags=["operations"], responses=error_responses(503))
    async def readyz() -> ProbeResponse:
        """Whether requests will be served: 503 with the reason while loading, draining or failed."""
        state, reason = lifecycle.status()
        if state != "ready":
            raise not_ready(state, reason)
        return ProbeResponse(status="ready")

    @app.get("/metrics", name="metrics", tags=["operations"], response_class=Response)
    async def prometheus() -> Response:
        """Measurements in Prometheus' text format."""
        return Response(metrics.page(), media_type=CONTENT_TYPE_LATEST)
