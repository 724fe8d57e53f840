"""The common part of both services' FastAPI apps: middleware, error handlers, probes and metrics."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from shared.http.body_route import operation_id
from shared.http.document import complete_document
from shared.http.errors import install_error_handlers
from shared.http.lifecycle import Lifecycle
from shared.http.metrics import HttpMetrics
from shared.http.middleware.access_log import AccessLogMiddleware
from shared.http.middleware.admission import AdmissionMiddleware, HeadCheck, check_headers
from shared.http.middleware.api_keys import ApiKeys
from shared.http.middleware.body_limit import MemoryBudget, check_length
from shared.http.middleware.cors import add_cors
from shared.http.middleware.tracing import TracingMiddleware, make_tracer_provider, shut_down_provider
from shared.http.probes import HEALTH_PATHS, add_probes
from shared.http.settings import ServiceSettings
from shared.pages import is_page_path, page_routes


class _App(FastAPI):
    """FastAPI within our middleware: its own outer layers take a twentieth of a request's time.

    Requests that our middleware answers or dispatches do not pass them.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """FastAPI's layers and router, and ours around them."""
        ours, self.user_middleware = self.user_middleware, []
        app = super().build_middleware_stack()
        self.user_middleware = ours
        for middleware in reversed(ours):
            app = middleware.cls(app, *middleware.args, **middleware.kwargs)
        return app


def build_app(
    settings: ServiceSettings,
    lifecycle: Lifecycle[Any],
    metrics: HttpMetrics,
    *,
    title: str,
    description: str,
    version: str,
    pages: str,
    refusal: HeadCheck | None = None,
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
        pages: The package of the service's web pages.
        refusal: May refuse a request by its head, before its body is read.

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
    app = _App(
        title=title,
        description=description,
        version=version,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages need another host
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy with TLS the redirect would lead to plain HTTP
        telemetry={"tracing": False, "metrics": False, "logs": False},
        generate_unique_id_function=operation_id,
    )
    app.state.lifecycle = lifecycle
    app.state.metrics = metrics
    install_error_handlers(app)
    keys = ApiKeys.from_settings(settings)
    checks: list[HeadCheck] = [partial(check_headers, settings.hosts)]
    routes = (
        page_routes(["shared.http.docs_page", pages], assets=[("fastapi_offline", "static")]) if settings.pages else []
    )
    if keys is not None:
        # Pages hold no data, and ask for the key; Swagger UI learns from the document that there is one.
        public = HEALTH_PATHS | ({app.openapi_url} if routes else set())
        checks.append(partial(keys.check, is_public=lambda path: path in public or is_page_path(path, routes)))
    if refusal is not None:
        checks.append(refusal)
    checks.append(partial(check_length, settings.max_body_bytes))
    # The last one added is the outermost: all refusals are logged, and have CORS headers.
    budget = MemoryBudget(settings.memory_in_flight)
    app.add_middleware(AdmissionMiddleware, checks=checks, max_body_bytes=settings.max_body_bytes, budget=budget)
    add_cors(app, settings)
    if provider is not None:
        app.add_middleware(TracingMiddleware, provider=provider)
    app.add_middleware(AccessLogMiddleware, metrics=metrics)
    complete_document(app, keys=keys is not None)
    add_probes(app, lifecycle, metrics)
    app.router.routes.extend(routes)
    return app
