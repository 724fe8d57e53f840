"""What the inference service measures besides its HTTP traffic."""

from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram

from services.inference.engine import EngineStats
from shared.http import HttpMetrics

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class InferenceMetrics(HttpMetrics):
    """Tokens, queue and latencies; `stats` is asked at each scrape, and gives None while there is no engine."""

    def __init__(self, stats: Callable[[], EngineStats | None]) -> None:
        super().__init__()
        registry = self.registry
        self.prompt_tokens = Counter("ownlm_prompt_tokens", "Prompt tokens of answered requests", registry=registry)
        self.generated_tokens = Counter("ownlm_generated_tokens", "Tokens generated for clients", registry=registry)
        self.cancelled = Counter("ownlm_cancelled_requests", "Requests ended before their answer", registry=registry)
        self.failed = Counter("ownlm_failed_requests", "Requests that the engine could not finish", registry=registry)
        self.first_token_seconds = Histogram(
            "ownlm_time_to_first_token_seconds", "From queueing to the first token", buckets=_SECONDS, registry=registry
        )
        self.generation_seconds = Histogram(
            "ownlm_generation_seconds", "From queueing to the last token", buckets=_SECONDS, registry=registry
        )
        waiting = Gauge("ownlm_waiting_rows", "Sequences waiting for a place in the batch", registry=registry)
        running = Gauge("ownlm_running_rows", "Sequences in the batch", registry=registry)
        waiting.set_function(lambda: (stats() or EngineStats(0, 0)).waiting_rows)
        running.set_function(lambda: (stats() or EngineStats(0, 0)).running_rows)
