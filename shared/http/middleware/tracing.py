"""OpenTelemetry traces: one span for each request, if an endpoint is configured."""

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.http.probes import QUIET_PATHS
from shared.http.request_context import add_log_fields, current_request
from shared.http.settings import ServiceSettings, SettingsError
from shared.system.errors import how_to_install

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span
    from opentelemetry.trace import TracerProvider as AnyTracerProvider

_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_LAST_SPANS_SECONDS = 1.0


class TracingMiddleware:
    """Wraps each request in a server span that continues the caller's trace; its attributes include the log fields.

    `opentelemetry-api` must be installed; `provider` exports the spans.
    """

    def __init__(self, app: ASGIApp, provider: "AnyTracerProvider") -> None:
        from opentelemetry import propagate, trace

        self._app = app
        self._tracer = provider.get_tracer("ownlm")
        self._extract = propagate.extract
        self._server = trace.SpanKind.SERVER
        self._failed = trace.Status(trace.StatusCode.ERROR)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] in QUIET_PATHS:
            await self._app(scope, receive, send)
            return
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        span = self._tracer.start_span(scope["method"], context=self._extract(carrier), kind=self._server)
        context = span.get_span_context()
        if context.is_valid:
            add_log_fields(trace_id=f"{context.trace_id:032x}")
        status = 0

        async def traced_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, traced_send)
        except Exception as error:
            span.record_exception(error)
            status = status or 500
            raise
        finally:
            self._finish(span, scope, status)

    def _finish(self, span: "Span", scope: Scope, status: int) -> None:
        route = getattr(scope.get("route"), "path", None)
        if route is not None:
            span.update_name(f"{scope['method']} {route}")
            span.set_attribute("http.route", route)
        span.set_attribute("http.request.method", scope["method"])
        span.set_attribute("url.path", scope["path"])
        if status:
            span.set_attribute("http.response.status_code", status)
        context = current_request.get()
        if context is not None:
            span.set_attribute("ownlm.request_id", context.id)
            if context.error_code is not None:
                span.set_attribute("error.type", context.error_code)
            for name, value in context.log_fields.items():
                span.set_attribute(f"ownlm.{name}", value)
        if status >= 500:
            span.set_status(self._failed)
        span.end()


def make_tracer_provider(settings: ServiceSettings, service_name: str) -> "TracerProvider | None":
    """Export spans to `OWNLM_OTLP_ENDPOINT` or the endpoint of the standard `OTEL_` variables; None without either.

    Raises:
        SettingsError: An endpoint is set, but OpenTelemetry is not installed.
    """
    variable = next((name for name in _ENDPOINT_VARIABLES if os.environ.get(name)), None)
    endpoint = settings.otlp_endpoint
    if (endpoint is None and variable is None) or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        name = "OWNLM_OTLP_ENDPOINT" if endpoint else variable
        raise SettingsError(
            f"{name} is set, but OpenTelemetry is not installed: {how_to_install('otel')}, or unset it"
        ) from error
    has_name = "OTEL_SERVICE_NAME" in os.environ
    provider = TracerProvider(resource=Resource.create({} if has_name else {"service.name": service_name}))
    # Without an argument the exporter reads the standard variables.
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces") if endpoint else OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def shut_down_provider(provider: "TracerProvider") -> None:
    """Export the remaining spans for at most a second: an unreachable collector must not delay the exit."""
    exporter = threading.Thread(target=provider.shutdown, name="last-spans", daemon=True)
    with suppress(RuntimeError, MemoryError):  # without a thread, nothing would limit how long it takes
        exporter.start()
        exporter.join(_LAST_SPANS_SECONDS)
