"""Health checks and metrics."""

from typing import Any, Literal

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from shared.http.errors import error_responses
from shared.http.lifecycle import Lifecycle, not_ready
from shared.http.metrics import HttpMetrics

HEALTH_PATHS = frozenset({"/livez", "/readyz", "/health"})
QUIET_PATHS = HEALTH_PATHS | {"/metrics"}  # requested every few seconds: logged at debug level, not traced


class ProbeResponse(BaseModel):
    """The response to a health check."""

    status: Literal["alive", "ready"]


def add_probes(app: FastAPI, lifecycle: Lifecycle[Any], metrics: HttpMetrics) -> None:
    """Add /livez, /readyz with its alias /health, and /metrics."""

    # Load balancers send HEAD. The server omits the body.
    @app.head("/livez", include_in_schema=False)
    @app.get("/livez", tags=["operations"], responses=error_responses(503))
    async def livez() -> ProbeResponse:
        """Liveness: 200 also while loading, restarting the model and draining; 503 with the reason after a failure."""
        state, reason = lifecycle.status()
        if state == "failed":
            raise not_ready(state, reason)
        return ProbeResponse(status="alive")

    @app.head("/health", include_in_schema=False)
    @app.get("/health", include_in_schema=False)
    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", tags=["operations"], responses=error_responses(503))
    async def readyz() -> ProbeResponse:
        """Readiness: 503 with the reason while loading or draining, or after a failure."""
        state, reason = lifecycle.status()
        if state != "ready":
            raise not_ready(state, reason)
        return ProbeResponse(status="ready")

    @app.get("/metrics", name="metrics", tags=["operations"], response_class=Response)
    async def prometheus() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)
