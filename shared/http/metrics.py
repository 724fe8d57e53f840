"""HTTP metrics of both services in Prometheus' format, with one registry per app."""

import os

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from shared.http.process_metrics import ServiceProcesses

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second time series for each counter


class HttpMetrics:
    """Requests by route template, method and status; paths without a route are counted as `unmatched`.

    Where several worker processes share a port, each writes into the folder `PROMETHEUS_MULTIPROC_DIR`, and each
    reports the sum of all. The variable must be set before `prometheus_client` is imported.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        labels = ("method", "route", "status")
        self.requests = Counter("ownlm_http_requests", "Finished requests", labels, registry=self.registry)
        self.duration = Histogram(
            "ownlm_http_request_duration_seconds",
            "From the request's head to the last byte of its response",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "ownlm_http_requests_in_flight", "Requests in progress", multiprocess_mode="livesum",
            registry=self.registry,
        )  # fmt: skip
        self.refusals = Counter(
            "ownlm_refused_requests",
            "Refused requests, by reason",
            ("reason",),
            registry=self.registry,
        )
        # Cached: looking up labels takes longer than counting.
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def count_refusal(self, reason: str) -> None:
        """Count one refused request."""
        self.refusals.labels(reason).inc()

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        children = self._children.get((method, route, status))
        if children is None:
            children = self.requests.labels(method, route, status), self.duration.labels(method, route)
            self._children[method, route, status] = children
        children[0].inc()
        children[1].observe(seconds)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        if _MULTIPROCESS not in os.environ:
            return generate_latest(self.registry)
        workers = CollectorRegistry()
        MultiProcessCollector(workers)  # type: ignore[no-untyped-call]
        workers.register(ServiceProcesses(os.getppid()))
        return generate_latest(workers)
