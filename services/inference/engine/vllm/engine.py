"""vLLM's AsyncLLM as an `Engine`."""

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import REGISTRY, Metric

from services.inference.engine.errors import EngineError, UnsupportedFieldError
from services.inference.engine.ipc import Ready
from services.inference.engine.request_handle import RequestHandle
from services.inference.engine.requests import LiveRequests
from services.inference.engine.supervisor import Supervisor
from services.inference.engine.types import EngineStats, Fault, SequenceRequest
from services.inference.engine.vllm.outputs import SequenceOutputs
from services.inference.engine.vllm.parameters import check_supported
from services.inference.engine.vllm.process import VllmProcess
from services.inference.engine.vllm.stats import VllmStats

_WATCH_SECONDS = 0.25


class VllmEngine:
    """Runs each sequence as a request of vLLM, which has its own processes, scheduler and KV cache.

    Args:
        process: vLLM with the model loaded.
        ready: Its ready message.
        launch: Makes another one like it, which loads the model in `wait_ready`.
        stats: What vLLM reports its steps to.
        max_sequences: How many may run or wait.
        queue_timeout: Seconds that a request may wait until its first token; None: no limit.
        request_timeout: Seconds that a request may take in all.
        step_timeout: Seconds after which a busy vLLM that completes no step is replaced; None: no limit.
    """

    def __init__(
        self,
        process: VllmProcess,
        ready: Ready,
        launch: Callable[[], VllmProcess],
        stats: VllmStats,
        *,
        max_sequences: int,
        queue_timeout: float | None = None,
        request_timeout: float | None = None,
        step_timeout: float | None = None,
    ) -> None:
        self._stats = stats
        self._requests = LiveRequests(
            max_sequences, self._cancel, queue_timeout=queue_timeout, request_timeout=request_timeout
        )
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}  # by request and sequence
        self._supervisor = Supervisor(
            process,
            ready,
            launch,
            wait_end=self._wait_end,
            is_busy=lambda: len(self._requests) > 0,
            on_end=self._requests.fail_all,
            step_timeout=step_timeout,
        )
        stats.on_step = self._supervisor.heard

    @property
    def fault(self) -> Fault | None:
        """Why the engine cannot run anything now, or None."""
        return self._supervisor.fault

    @property
    def worker_pid(self) -> int | None:
        """The id of vLLM's EngineCore; processes that it has started are not counted."""
        return self._supervisor.process.pid

    async def start(self, on_admitted: Callable[[float], None] = lambda _seconds: None) -> None:
        """See `Engine.start`."""
        self._on_admitted = on_admitted
        await self._supervisor.start()

    def check_room(self, num_sequences: int) -> None:
        """See `Engine.check_room`."""
        self._requests.check_room(num_sequences, self.fault)

    def submit(self, requests: list[SequenceRequest]) -> RequestHandle:
        """See `Engine.submit`."""
        for request in requests:
            check_supported(request, self._supervisor.ready.context_length)
        self.check_room(len(requests))
        request_id, handle = self._requests.add(len(requests))
        for index, request in enumerate(requests):
            task = asyncio.create_task(self._run(request_id, index, request))
            self._tasks[request_id, index] = task
            task.add_done_callback(partial(self._ended, request_id, index))
        return handle

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        return self._stats.stats(self._requests.num_live, self._supervisor.num_restarts)

    def metrics(self) -> Iterable[Metric]:
        """VLLM's own, which it registers with the default registry."""
        return (metric for metric in REGISTRY.collect() if metric.name.startswith("vllm:"))

    async def drain(self, timeout: float) -> None:
        """See `Engine.drain`."""
        self._supervisor.stop_restarting()
        await self._requests.drain(timeout)

    def close(self) -> None:
        """See `Engine.close`; blocks until vLLM's processes have ended."""
        self._requests.refuse_new()
        for task in self._tasks.values():
            task.cancel()
        self._supervisor.close()

    # Sequences

    async def _run(self, request_id: int, index: int, request: SequenceRequest) -> None:
        """Generate one sequence."""
        process = self._supervisor.process
        outputs = SequenceOutputs(request_id, index, request, process.valid_ids)
        is_admitted = False
        try:
            async for output in process.generate(request, f"{request_id}-{index}"):
                if not is_admitted:
                    is_admitted = True
                    self._admit(request_id, request, output.metrics.scheduled_ts)
                for event in outputs.events(output):
                    self._requests.receive(event)
        except Exception as error:
            if not process.is_dead:  # else all requests end
                self._fail(request_id, index, error)

    def _admit(self, request_id: int, request: SequenceRequest, at: float) -> None:
        """Note when the sequence was scheduled; another machine's clock, as with Ray, counts only within reason."""
        at = min(max(at, request.arrived_at), time.perf_counter())
        self._on_admitted(at - request.arrived_at)
        if (handle := self._requests.get(request_id)) is not None:
            handle.start(at)

    def _fail(self, request_id: int, index: int, error: Exception) -> None:
        handle = self._requests.get(request_id)
        if handle is not None and handle.is_live(index):
            self._requests.fail(request_id, _as_engine_error(error))

    def _cancel(self, request_id: int, index: int | None) -> None:
        """Abort one sequence in vLLM, or all of a request: a canceled `generate` does."""
        for key, task in list(self._tasks.items()):
            if key[0] == request_id and index in (None, key[1]) and task is not asyncio.current_task():
                task.cancel()

    def _ended(self, request_id: int, index: int, _task: asyncio.Task[None]) -> None:
        self._tasks.pop((request_id, index), None)

    async def _wait_end(self) -> None:
        while not self._supervisor.process.is_dead:
            await asyncio.sleep(_WATCH_SECONDS)


def _as_engine_error(error: Exception) -> EngineError:
    """What vLLM raised, whose errors of validation name the parameter."""
    if isinstance(error, EngineError):
        return error
    parameter = getattr(error, "parameter", None)
    if isinstance(parameter, str):
        return UnsupportedFieldError(parameter, f"vLLM refuses it: {error}")
    return EngineError(f"vLLM failed: {error.__cause__ or error}")
