"""A running vLLM: its AsyncLLM, process id and context length."""

import multiprocessing
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import structlog

from services.inference.engine.errors import LoadTimeoutError
from services.inference.engine.types import SequenceRequest
from services.inference.engine.vllm.parameters import sampling_arguments
from services.inference.engine.vllm.stats import VllmStats

_log = structlog.get_logger("ownlm.engine")

_SHUTDOWN_SECONDS = 1.0


class RunningVllm:
    """An AsyncLLM with the model loaded.

    Args:
        arguments: Of `vllm.AsyncEngineArgs`.
        stats: What it reports its steps to.
        valid_ids: The ids that have a token, where the model has rows without one.
        load_timeout: Seconds that it may take to load the model; None: no limit.

    Attributes:
        context_length: The most tokens of a sequence.
        pid: The id of its EngineCore, which runs the scheduler.

    Raises:
        LoadTimeoutError: The limit has passed.
        Exception: vLLM's own, of any type.
    """

    def __init__(
        self,
        arguments: dict[str, Any],
        stats: VllmStats,
        valid_ids: frozenset[int] | None,
        *,
        load_timeout: float | None = None,
    ) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.valid_ids = valid_ids
        self._allowed_ids = None if valid_ids is None else sorted(valid_ids)
        engine_args = AsyncEngineArgs(**arguments)
        before = set(multiprocessing.active_children())
        # Ctrl-C is for this process, which drains first: blocked here, the signal stays blocked in the processes that
        # vLLM starts. multiprocessing's tracker unblocks it when it starts, so it must run before.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with _killed_after(load_timeout, before):
                self._llm = AsyncLLM.from_engine_args(engine_args, stat_loggers=[stats])
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        self.pid = next((process.pid for process in _children_besides(before)), None)
        self.context_length: int = self._llm.model_config.max_model_len

    @property
    def is_dead(self) -> bool:
        """Whether it can run nothing any more."""
        return bool(self._llm.errored)

    def generate(self, request: SequenceRequest, name: str) -> AsyncIterator[Any]:
        """Generate a sequence: yields `vllm.RequestOutput`s of what is new. vLLM aborts it when this is canceled."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        arguments = sampling_arguments(request, self._allowed_ids)
        params = SamplingParams(**arguments, output_kind=RequestOutputKind.DELTA)
        outputs: AsyncIterator[Any] = self._llm.generate(tokens_input(list(request.prompt_ids)), params, name)
        return outputs

    def shut_down(self) -> None:
        """End its processes; blocks."""
        try:
            self._llm.shutdown(timeout=_SHUTDOWN_SECONDS)
        except Exception as error:
            _log.warning("vLLM did not shut down cleanly", exc_info=error)


def _children_besides(known: set[BaseProcess]) -> set[BaseProcess]:
    return set(multiprocessing.active_children()) - known


@contextmanager
def _killed_after(seconds: float | None, known: set[BaseProcess]) -> Iterator[None]:
    """Kill the processes that vLLM starts, if they take too long: it waits for them as long as they run.

    Args:
        seconds: None: no limit.
        known: Other children of this process.

    Raises:
        LoadTimeoutError: They were killed.
    """
    if seconds is None:
        yield
        return
    is_over = threading.Event()

    def kill() -> None:
        is_over.set()
        for process in _children_besides(known):
            process.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if is_over.is_set():
            raise LoadTimeoutError(seconds) from error
        raise
    finally:
        timer.cancel()
