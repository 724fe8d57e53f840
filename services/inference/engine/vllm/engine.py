"""vLLM's AsyncLLM as an `Engine`."""

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial

import anyio.to_thread
import structlog
from prometheus_client import REGISTRY, Metric

from services.inference.engine.crash_counter import LOAD_WAITS, TOO_MANY, CrashCounter
from services.inference.engine.errors import (
    EngineError,
    EngineRestartedError,
    EngineUnavailableError,
    LoadError,
    UnsupportedFieldError,
)
from services.inference.engine.request_handle import RequestHandle
from services.inference.engine.requests import LiveRequests
from services.inference.engine.types import EngineStats, Fault, SequenceRequest
from services.inference.engine.vllm.outputs import SequenceOutputs
from services.inference.engine.vllm.parameters import check_supported
from services.inference.engine.vllm.process import RunningVllm
from services.inference.engine.vllm.stats import VllmStats

_log = structlog.get_logger("ownlm.engine")

_WATCH_SECONDS = 0.25


class VllmEngine:
    """Runs each sequence as a request of vLLM, which has its own processes, scheduler and KV cache.

    Args:
        running: vLLM with the model loaded.
        launch: Starts another one like it; blocks.
        stats: What vLLM reports its steps to.
        max_sequences: How many may run or wait.
        queue_timeout: Seconds that a request may wait until its first token; None: no limit.
        request_timeout: Seconds that a request may take in all.
        step_timeout: Seconds without a step after which a busy vLLM is replaced; None never does.
    """

    def __init__(
        self,
        running: RunningVllm,
        launch: Callable[[], RunningVllm],
        stats: VllmStats,
        *,
        max_sequences: int,
        queue_timeout: float | None = None,
        request_timeout: float | None = None,
        step_timeout: float | None = None,
    ) -> None:
        self._running = running
        self._launch = launch
        self._stats = stats
        self._step_timeout = step_timeout
        self._requests = LiveRequests(
            max_sequences, self._cancel, queue_timeout=queue_timeout, request_timeout=request_timeout
        )
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}  # by request and sequence
        self._fault: Fault | None = None
        self._crashes = CrashCounter()
        self._num_restarts = 0
        self._may_restart = True
        self._watcher: asyncio.Task[None] | None = None

    @property
    def fault(self) -> Fault | None:
        """Why the engine cannot run anything now, or None."""
        return self._fault

    @property
    def worker_pid(self) -> int | None:
        """The id of vLLM's EngineCore; processes that it has started are not counted."""
        return self._running.pid

    async def start(self, on_admitted: Callable[[float], None] = lambda _seconds: None) -> None:
        """See `Engine.start`."""
        self._on_admitted = on_admitted
        self._watcher = asyncio.create_task(self._watch())

    def check_room(self, num_sequences: int) -> None:
        """See `Engine.check_room`."""
        self._requests.check_room(num_sequences, self._fault)

    def submit(self, requests: list[SequenceRequest]) -> RequestHandle:
        """See `Engine.submit`."""
        for request in requests:
            check_supported(request, self._running.context_length)
        self.check_room(len(requests))
        if not self._tasks:
            self._stats.last_step_at = time.monotonic()  # it was idle until now
        request_id, handle = self._requests.add(len(requests))
        for index, request in enumerate(requests):
            task = asyncio.create_task(self._run(request_id, index, request))
            self._tasks[request_id, index] = task
            task.add_done_callback(partial(self._ended, request_id, index))
        return handle

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        return self._stats.stats(self._requests.num_live, self._num_restarts)

    def metrics(self) -> Iterable[Metric]:
        """VLLM's own, which it registers with the default registry."""
        return (metric for metric in REGISTRY.collect() if metric.name.startswith("vllm:"))

    async def drain(self, timeout: float) -> None:
        """See `Engine.drain`."""
        self._may_restart = False
        await self._requests.drain(timeout)

    def close(self) -> None:
        """See `Engine.close`; blocks until vLLM's processes have ended."""
        self._may_restart = False
        self._requests.refuse_new()
        if self._watcher is not None:
            self._watcher.cancel()
        for task in self._tasks.values():
            task.cancel()
        self._running.shut_down()

    # Sequences

    async def _run(self, request_id: int, index: int, request: SequenceRequest) -> None:
        """Generate one sequence."""
        running = self._running
        outputs = SequenceOutputs(request_id, index, request, running.valid_ids)
        is_admitted = False
        try:
            async for output in running.generate(request, f"{request_id}-{index}"):
                if not is_admitted:
                    is_admitted = True
                    self._admit(request_id, request, output.metrics.scheduled_ts)
                for event in outputs.events(output):
                    self._requests.receive(event)
        except Exception as error:
            if not running.is_dead:  # else `_watch` ends all requests
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

    # Restarts

    async def _watch(self) -> None:
        """Replace vLLM when its processes have ended, or hang."""
        started_at = time.monotonic()
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            reason = self._end_reason()
            if reason is None:
                continue
            self._num_restarts += 1
            self._crashes.add(time.monotonic() - started_at)
            await self._replace(reason)
            if self._fault is not None:
                return
            started_at = self._stats.last_step_at = time.monotonic()

    def _end_reason(self) -> str | None:
        if self._running.is_dead:
            return "vLLM's engine ended"
        silent = time.monotonic() - self._stats.last_step_at
        if self._step_timeout is not None and self._tasks and silent > self._step_timeout:
            return f"vLLM was busy and made no step for {self._step_timeout:g} seconds, the limit"
        return None

    async def _replace(self, reason: str) -> None:
        """Fail the requests of a vLLM that has ended, and start another one; sets `fault` where that fails."""
        _log.error("the engine ended", reason=reason)
        if self._crashes.too_many or not self._may_restart:
            why = TOO_MANY if self._crashes.too_many else "while the server is shutting down"
            self._fault = Fault(f"{reason}, {why}", final=True)
            self._requests.fail_all(EngineUnavailableError(self._fault.reason))
        else:
            self._fault = Fault(reason, final=False)
            self._requests.fail_all(EngineRestartedError(f"{reason}; it is being restarted, send the request again"))
        try:
            await anyio.to_thread.run_sync(self._running.shut_down)
            if self._fault.final:
                return
            await asyncio.sleep(self._crashes.restart_delay)
            running = await self._load()
        except Exception as error:
            _log.error("the restart failed", exc_info=error)
            self._fault = Fault(f"vLLM cannot be started again: {error}", final=True)
            return
        self._running, self._fault = running, None
        _log.info("the engine was restarted", restarts=self._num_restarts)

    async def _load(self) -> RunningVllm:
        """Start another vLLM, again after transient errors."""
        waits = iter(LOAD_WAITS)
        while True:
            try:
                return await anyio.to_thread.run_sync(self._launch, abandon_on_cancel=True)
            except LoadError as error:
                wait = next(waits, None)
                if wait is None or not error.transient:
                    raise
                self._fault = Fault(f"vLLM cannot be started again yet: {error}", final=False)
                _log.warning("loading the model again failed", reason=str(error), next_try_seconds=wait)
            await asyncio.sleep(wait)


def _as_engine_error(error: Exception) -> EngineError:
    """What vLLM raised, whose errors of validation name the parameter."""
    if isinstance(error, EngineError):
        return error
    parameter = getattr(error, "parameter", None)
    if isinstance(parameter, str):
        return UnsupportedFieldError(parameter, f"vLLM refuses it: {error}")
    return EngineError(f"vLLM failed: {error.__cause__ or error}")
