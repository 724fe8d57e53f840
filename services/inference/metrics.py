"""Metrics of the inference service besides those of HTTP."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.inference.engine import EngineStats
from shared.http import HttpMetrics

_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_SECONDS = (
    0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip
_GAUGES = {
    "ownlm_waiting_rows": ("num_waiting", "Sequences that wait for a slot of the batch"),
    "ownlm_running_rows": ("num_running", "Sequences in the batch"),
    "ownlm_kv_blocks": ("kv_blocks_total", "The most blocks of the KV cache"),
    "ownlm_kv_blocks_allocated": ("kv_blocks_allocated", "Blocks that memory has been taken for"),
    "ownlm_kv_blocks_used": ("kv_blocks_used", "Blocks that running sequences hold"),
    "ownlm_kv_blocks_cached": ("kv_blocks_cached", "Unused blocks with content for prefix cache hits"),
}
_COUNTERS = {
    "ownlm_prefix_tokens_looked_up": ("prefix_tokens_looked_up", "Prompt tokens looked up in the prefix cache"),
    "ownlm_prefix_tokens_hit": ("prefix_tokens_hit", "Prompt tokens that were prefix cache hits"),
    "ownlm_engine_prefill_tokens": ("prefill_tokens", "Prompt tokens computed"),
    "ownlm_engine_generated_tokens": ("generated_tokens", "Tokens sampled, also for canceled requests"),
    "ownlm_engine_preemptions": ("preemptions", "Sequences that lost their blocks to older ones"),
    "ownlm_engine_steps": ("steps", "Steps of the model"),
    "ownlm_engine_restarts": ("restarts", "Restarts of the engine process"),
}


class InferenceMetrics(HttpMetrics):
    """Tokens and latencies.

    Args:
        stats: Returns the engine's numbers at each scrape; None while there is no engine.
        worker_pid: Returns the id of the engine process; None while there is none.
        engine_metrics: Returns the engine's own metrics besides `stats`.
    """

    def __init__(
        self,
        stats: Callable[[], EngineStats | None],
        worker_pid: Callable[[], int | None] = lambda: None,
        engine_metrics: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        super().__init__()
        # The collector reports nothing for an id without a process.
        ProcessCollector(namespace="ownlm_model", pid=lambda: worker_pid() or "none", registry=self.registry)
        self.prompt_tokens = self._counter("ownlm_prompt_tokens", "Prompt tokens of answered requests")
        self.cached_tokens = self._counter("ownlm_cached_prompt_tokens", "Cached prompt tokens of answered requests")
        self.generated_tokens = self._counter("ownlm_generated_tokens", "Tokens generated for clients")
        self.cancelled = self._counter(
            "ownlm_cancelled_requests", "Requests canceled before their response was complete"
        )
        self.failed = self._counter("ownlm_failed_requests", "Requests that the engine failed to finish")
        self.queue_seconds = self._histogram(
            "ownlm_queue_seconds", "From a request's arrival to the admission of a sequence to the batch"
        )
        self.first_token_seconds = self._histogram(
            "ownlm_time_to_first_token_seconds", "From a request's arrival to its first token"
        )
        self.token_seconds = self._histogram(
            "ownlm_time_between_tokens_seconds", "Between two tokens of one sequence", _TOKEN_SECONDS
        )
        self.generation_seconds = self._histogram(
            "ownlm_generation_seconds", "From a request's arrival to its last token"
        )
        self.registry.register(_EngineCollector(stats, engine_metrics))

    def _counter(self, name: str, description: str) -> Counter:
        return Counter(name, description, registry=self.registry)

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...] = _REQUEST_SECONDS) -> Histogram:
        return Histogram(name, description, buckets=buckets, registry=self.registry)


class _EngineCollector(Collector):
    """The engine's numbers, read once for each scrape, so that they are consistent."""

    def __init__(self, stats: Callable[[], EngineStats | None], engine_metrics: Callable[[], Iterable[Metric]]) -> None:
        self._stats = stats
        self._engine_metrics = engine_metrics

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's gauges and counters; zeros while there is no engine."""
        stats = self._stats() or EngineStats()
        for name, (field, description) in _GAUGES.items():
            yield GaugeMetricFamily(name, description, value=getattr(stats, field))
        for name, (field, description) in _COUNTERS.items():
            yield CounterMetricFamily(name, description, value=getattr(stats, field))
        yield from self._engine_metrics()
