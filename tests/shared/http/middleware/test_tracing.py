"""Spans, collected in memory with OpenTelemetry's own exporter for tests; and a real exporter's end."""

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from structlog.testing import capture_logs

from shared.http import HttpMetrics, SettingsError, add_log_fields
from shared.http.middleware.access_log import AccessLogMiddleware
from shared.http.middleware.tracing import TracingMiddleware

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def client(build: Any, spans: InMemorySpanExporter) -> TestClient:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    app = build()

    @app.get("/noted")
    async def noted() -> str:
        add_log_fields(queue_ms=1.5, prompt_tokens=3)
        return "x"

    app.user_middleware.clear()
    app.add_middleware(TracingMiddleware, provider=provider)
    app.add_middleware(AccessLogMiddleware, metrics=HttpMetrics())
    return TestClient(app, raise_server_exceptions=False)


def test_a_span_for_each_request_on_the_callers_trace(client: TestClient, spans: InMemorySpanExporter) -> None:
    with capture_logs() as logs:
        response = client.get("/noted", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    [span] = spans.get_finished_spans()
    assert (span.name, span.kind) == ("GET /noted", SpanKind.SERVER)
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    attributes = dict(span.attributes or {})
    assert attributes["http.response.status_code"] == 200
    assert attributes["http.route"] == "/noted"
    assert attributes["ownlm.queue_ms"] == 1.5
    assert attributes["ownlm.prompt_tokens"] == 3
    assert attributes["ownlm.request_id"] == response.headers["x-request-id"]
    [line] = [entry for entry in logs if entry["event"] == "request"]
    assert line["trace_id"] == TRACE


def test_errors_are_marked(client: TestClient, spans: InMemorySpanExporter) -> None:
    client.get("/items/broken")
    client.get("/items/busy")
    broken, busy = spans.get_finished_spans()
    assert broken.status.status_code == StatusCode.ERROR
    assert broken.events[0].name == "exception"
    assert (busy.status.status_code, (busy.attributes or {})["error.type"]) == (StatusCode.UNSET, "full")


def test_health_checks_are_not_traced(client: TestClient, spans: InMemorySpanExporter) -> None:
    client.get("/livez")
    client.get("/metrics")
    assert spans.get_finished_spans() == ()


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A collector's address, and what it got."""
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("standard_variable", [True, False])
def test_the_last_spans_are_sent_at_the_end(
    build: Any, collector: Any, monkeypatch: pytest.MonkeyPatch, standard_variable: bool
) -> None:
    url, got = collector
    monkeypatch.setattr("shared.http.middleware.tracing._LAST_SPANS_SECONDS", 240)
    if standard_variable:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    with TestClient(build(**({} if standard_variable else {"otlp_endpoint": url}))) as client:
        client.get("/items/a")
    [(path, body)] = got
    assert path == "/v1/traces"
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    assert [span.name for span in resource.scope_spans[0].spans] == ["GET /items/{name}"]
    assert "service.name" in str(resource.resource)


def test_a_collector_that_is_gone_does_not_hold_up_the_end(
    build: Any, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter itself would try for ten seconds and more; here it would for ever."""
    monkeypatch.setattr("shared.http.middleware.tracing._LAST_SPANS_SECONDS", 0.01)
    monkeypatch.setattr(TracerProvider, "shutdown", lambda _: gate.wait())
    with TestClient(build(otlp_endpoint="http://127.0.0.1:9")) as client:
        assert client.get("/items/a").status_code in (200, 503)
    [sender] = [thread for thread in threading.enumerate() if thread.name == "last-spans"]
    gate.set()
    sender.join()


def test_missing_packages_are_named(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SettingsError, match=r"OWNLM_OTLP_ENDPOINT is set.*pip install .*'\.\[otel\]' in the checkout"):
        build(otlp_endpoint="http://127.0.0.1:9")


def test_nothing_is_imported_where_nothing_is_configured(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert TestClient(build()).get("/livez").status_code == 200
