"""What the inference service measures besides its HTTP traffic."""

from collections.abc import Callable, Iterator

from prometheus_client import Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.inference.engine import EngineStats
from shared.http import HttpMetrics

_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_SECONDS = (
    0.001,
    0.002,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    2.5,
)


class InferenceMetrics(HttpMetrics):
    """Tokens and latencies.

    Args:
        stats: Gives the engine's numbers at each scrape, and None while there is no engine.
        model_process: Gives the id of the process that runs the model, and None while there is none.
    """

    def __init__(
        self, stats: Callable[[], EngineStats | None], model_process: Callable[[], int | None] = lambda: None
    ) -> None:
        super().__init__()
        # An id that no process has is one without measurements.
        ProcessCollector(namespace="ownlm_model", pid=lambda: model_process() or "none", registry=self.registry)
        self.prompt_tokens = self._counter("ownlm_prompt_tokens", "Prompt tokens of answered requests")
        self.cached_tokens = self._counter("ownlm_cached_prompt_tokens", "Those that the prefix cache had")
        self.generated_tokens = self._counter("ownlm_generated_tokens", "Tokens generated for clients")
        self.cancelled = self._counter("ownlm_cancelled_requests", "Requests ended before their answer")
        self.failed = self._counter("ownlm_failed_requests", "Requests that the engine could not finish")
        self.queue_seconds = self._histogram(
            "ownlm_queue_seconds", "From a request's arrival to a sequence's place in the batch"
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
        self.registry.register(_EngineCollector(stats))

    def _counter(self, name: str, description: str) -> Counter:
        return Counter(name, description, registry=self.registry)

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...] = _REQUEST_SECONDS) -> Histogram:
        return Histogram(name, description, buckets=buckets, registry=self.registry)


class _EngineCollector(Collector):
    """The engine's own numbers, read once for each scrape, so that they fit together."""

    def __init__(self, stats: Callable[[], EngineStats | None]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Yield what the engine holds and has counted; zeros while there is none."""
        stats = self._stats() or EngineStats()
        gauges = {
            "ownlm_waiting_rows": (stats.num_waiting, "Sequences waiting for a place in the batch"),
            "ownlm_running_rows": (stats.num_running, "Sequences in the batch"),
            "ownlm_kv_blocks": (stats.kv_blocks_total, "Blocks of the KV cache"),
            "ownlm_kv_blocks_used": (stats.kv_blocks_used, "Blocks that running sequences hold"),
            "ownlm_kv_blocks_cached": (stats.kv_blocks_cached, "Free blocks in which prompts may be found again"),
        }
        counters = {
            "ownlm_prefix_tokens_looked_up": (
                stats.prefix_tokens_looked_up,
                "Prompt tokens looked up in the prefix cache",
            ),
            "ownlm_prefix_tokens_hit": (stats.prefix_tokens_hit, "Prompt tokens found in the cache"),
            "ownlm_engine_prefill_tokens": (stats.prefill_tokens, "Prompt tokens computed"),
            "ownlm_engine_generated_tokens": (stats.generated_tokens, "Tokens drawn, also those nobody waited for"),
            "ownlm_engine_preemptions": (stats.preemptions, "Sequences that gave their blocks to older ones"),
            "ownlm_engine_steps": (stats.steps, "Steps of the model"),
            "ownlm_engine_restarts": (stats.restarts, "Restarts of the model's process"),
        }
        for name, (value, description) in gauges.items():
            yield GaugeMetricFamily(name, description, value=value)
        for name, (value, description) in counters.items():
            yield CounterMetricFamily(name, description, value=value)
