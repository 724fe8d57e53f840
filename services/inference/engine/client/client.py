"""The engine as the HTTP process sees it: sequences go to the engine process and events come back."""

import asyncio
from collections.abc import Callable, Iterable

from prometheus_client import Metric

from services.inference.engine.client.child_process import ModelProcess
from services.inference.engine.client.connection import Connection
from services.inference.engine.errors import EngineError, EngineUnavailableError, QueueFullError
from services.inference.engine.ipc import Cancel, Command, ExitReason, LogLine, Ready, StepOutput, Submit, log
from services.inference.engine.request_handle import RequestHandle
from services.inference.engine.requests import LiveRequests
from services.inference.engine.supervisor import Supervisor
from services.inference.engine.types import EngineStats, FailEvent, Fault, SequenceRequest, StartEvent

_MAX_UNSENT_BYTES = 64 * 1024 * 1024


class EngineClient:
    """Runs sequences in an engine process, which is restarted when it ends. Used on the event loop only.

    Args:
        process: The first one, which has loaded the model.
        ready: Its ready message.
        launch: Starts another one like it without waiting; it loads in the background.
        max_queue: How many sequences may wait for a slot.
        queue_timeout: Seconds that a request may wait until its first sequence is admitted; None: no limit.
        request_timeout: Seconds that a request may take in all.
        step_timeout: Seconds after which a busy process that completes no step is replaced; None: no limit.
    """

    def __init__(
        self,
        process: ModelProcess,
        ready: Ready,
        launch: Callable[[], ModelProcess],
        *,
        max_queue: int,
        queue_timeout: float | None = None,
        request_timeout: float | None = None,
        step_timeout: float | None = None,
    ) -> None:
        self._lost = asyncio.Event()  # the process has closed its side
        self._supervisor = Supervisor(
            process,
            ready,
            launch,
            wait_end=self._lost.wait,
            is_busy=lambda: self._awaits_reply or len(self._requests) > 0,
            on_end=self._process_ended,
            attach=self._attach,
            detach=self._detach,
            step_timeout=step_timeout,
        )
        self._requests = LiveRequests(
            ready.num_slots + max_queue,
            lambda request_id, index: self._send(Cancel(request_id, index)),
            queue_timeout=queue_timeout,
            request_timeout=request_timeout,
        )
        self._stats = EngineStats(kv_blocks_total=ready.num_blocks)
        self._earlier_stats = EngineStats()  # the counters of earlier processes
        self._connection: Connection | None = None
        self._awaits_reply = False  # a command was sent, and each is answered by a step, which may be an empty one

    @property
    def fault(self) -> Fault | None:
        """Why the engine cannot run anything now, or None."""
        return self._supervisor.fault

    @property
    def worker_pid(self) -> int | None:
        """The id of the engine process."""
        return self._supervisor.process.pid

    async def start(self, on_admitted: Callable[[float], None] = lambda _seconds: None) -> None:
        """Connect to the process; called once.

        Args:
            on_admitted: Called with the seconds that each sequence waited for its slot.
        """
        self._on_admitted = on_admitted
        await self._supervisor.start()

    def check_room(self, num_sequences: int) -> None:
        """Raise what `submit` would raise now for this many sequences, before their prompts are encoded.

        Raises:
            RequestTooLargeError: They can never run here.
            QueueFullError: There is no room for all of them.
            EngineUnavailableError: Shutting down, being restarted, or failed.
        """
        self._requests.check_room(num_sequences, self.fault)
        if self._connection is not None and self._connection.unsent_bytes > _MAX_UNSENT_BYTES:
            raise QueueFullError("server overloaded: the engine process has too many unread requests; try again later")

    def submit(self, requests: list[SequenceRequest]) -> RequestHandle:
        """Queue the sequences of a request: all of them, or none where it raises.

        Raises:
            RequestTooLargeError: They can never run here.
            QueueFullError: There is no room for all of them.
            EngineUnavailableError: Shutting down, being restarted, or failed.
        """
        for request in requests:
            request.check_fits_cache(self._supervisor.ready.num_blocks)
        self.check_room(len(requests))
        request_id, handle = self._requests.add(len(requests))
        self._send(Submit(request_id, requests))
        return handle

    def stats(self) -> EngineStats:
        """Return the current numbers; sequences that the process has not received yet are waiting."""
        num_live = self._requests.num_live
        num_running, ready = min(self._stats.num_running, num_live), self._supervisor.ready
        return self._stats.after(self._earlier_stats)._replace(
            num_waiting=num_live - num_running,
            num_running=num_running,
            kv_blocks_total=ready.num_blocks,
            kv_blocks_allocated=max(self._stats.kv_blocks_allocated, ready.num_allocated_blocks),
            restarts=self._supervisor.num_restarts,
        )

    def metrics(self) -> Iterable[Metric]:
        """None besides `stats`."""
        return ()

    async def drain(self, timeout: float) -> None:
        """Refuse waiting requests, let running ones finish for `timeout` seconds, then fail the rest."""
        self._supervisor.stop_restarting()
        await self._requests.drain(timeout)

    def close(self) -> None:
        """Stop for good, also where it was never started; what still runs is dropped."""
        self._requests.refuse_new()
        self._supervisor.close()

    # The process at work

    async def _attach(self, process: ModelProcess) -> None:
        self._awaits_reply = False
        self._lost.clear()
        self._connection = Connection(self._receive, self._detach)
        await self._connection.open(process.connection)

    def _detach(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._lost.set()

    def _send(self, command: Command) -> None:
        """Send a command; one to a process that has ended is lost, as its requests are."""
        if self._connection is not None:
            self._awaits_reply = True
            self._connection.send(command)

    def _receive(self, message: StepOutput | ExitReason | LogLine) -> None:
        self._supervisor.heard()
        if isinstance(message, LogLine):
            log(message)
        elif isinstance(message, ExitReason):
            self._supervisor.exit_reason = message.reason
        else:
            self._take_step(message)

    def _take_step(self, output: StepOutput) -> None:
        self._awaits_reply = False
        self._stats = output.stats
        for event in output.events:
            if isinstance(event, StartEvent):
                self._on_admitted(max(0.0, output.began_at - event.arrived_at))
                if (handle := self._requests.get(event.request_id)) is not None:
                    handle.start(output.began_at)
            elif isinstance(event, FailEvent):
                handle = self._requests.get(event.request_id)
                if handle is not None and handle.is_live(event.sequence_index):
                    self._requests.fail(event.request_id, EngineError(event.message))
            else:
                self._requests.receive(event)

    def _process_ended(self, error: EngineUnavailableError) -> None:
        self._earlier_stats, self._stats = self.stats(), EngineStats()
        self._requests.fail_all(error)
