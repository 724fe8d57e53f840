"""What both services measure of their HTTP traffic, in Prometheus' format; one registry per app."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class HttpMetrics:
    """Requests by route template, method and status; a path that no route has is counted as `unmatched`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = Counter("ownlm_http_requests", "Requests answered", labels, registry=self.registry)
        self.duration = Histogram(
            "ownlm_http_request_duration_seconds",
            "From the request's head to the last byte of the answer",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge("ownlm_http_requests_in_flight", "Requests being answered", registry=self.registry)
