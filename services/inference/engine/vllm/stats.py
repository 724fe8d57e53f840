"""What vLLM reports of each step, as `EngineStats`."""

from typing import Any

from services.inference.engine.types import EngineStats


class VllmStats:
    """A stat logger of vLLM, and the factory of itself; counters survive a restart.

    It has the methods of `vllm.v1.metrics.loggers.StatLoggerBase`, and is not derived from it: vLLM is imported only
    where it is used.

    Attributes:
        on_step: Called at each step.
    """

    def __init__(self) -> None:
        self.on_step = _ignore
        self._counters = EngineStats()
        self._num_blocks = 0
        self._running: dict[int, int] = {}  # by engine: with data parallelism there are several
        self._cache_usage: dict[int, float] = {}

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> "VllmStats":
        """As vLLM's factory of a logger."""
        self._num_blocks = vllm_config.cache_config.num_gpu_blocks or 0
        self._running[engine_index], self._cache_usage[engine_index] = 0, 0.0
        return self

    def stats(self, num_live: int, restarts: int) -> EngineStats:
        """The current numbers, with `num_live` sequences that run or wait."""
        running = min(sum(self._running.values()), num_live)
        num_blocks = self._num_blocks * max(len(self._cache_usage), 1)
        return self._counters._replace(
            num_running=running,
            num_waiting=num_live - running,
            kv_blocks_total=num_blocks,
            kv_blocks_allocated=num_blocks,
            kv_blocks_used=round(self._num_blocks * sum(self._cache_usage.values())),
            restarts=restarts,
        )

    # What vLLM calls

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,  # noqa: ARG002 - of images
        engine_idx: int = 0,
    ) -> None:
        """A step has ended."""
        self.on_step()
        now = self._counters
        if scheduler_stats is not None:
            self._running[engine_idx] = scheduler_stats.num_running_reqs
            self._cache_usage[engine_idx] = scheduler_stats.kv_cache_usage
            prefix = scheduler_stats.prefix_cache_stats
            now = now._replace(
                steps=now.steps + 1,
                prefix_tokens_looked_up=now.prefix_tokens_looked_up + prefix.queries,
                prefix_tokens_hit=now.prefix_tokens_hit + prefix.hits,
            )
        if iteration_stats is not None:
            now = now._replace(
                prefill_tokens=now.prefill_tokens + iteration_stats.prompt_token_stats.computed,
                generated_tokens=now.generated_tokens + iteration_stats.num_generation_tokens,
                preemptions=now.preemptions + iteration_stats.num_preempted_reqs,
            )
        self._counters = now

    def log_engine_initialized(self) -> None:
        """Nothing to log."""

    def log(self) -> None:
        """Nothing to log."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Nothing to record: the service never puts vLLM to sleep."""


def _ignore() -> None:
    """For steps before there is a supervisor."""
