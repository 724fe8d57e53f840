"""Continuous batching: one thread owns the rows and the model; rows join and leave at every step."""

import asyncio
import threading
import time
from collections import deque

import structlog

from services.inference.engine.request import (
    EngineError,
    EngineStats,
    EngineUnavailableError,
    Fault,
    QueueFullError,
    RowRequest,
    TokenEvent,
)
from services.inference.engine.runner import Logits, Runner
from services.inference.engine.slot_row import Row
from services.inference.engine.thread_job import ThreadJob

_log = structlog.get_logger("ownlm.engine")

_MAX_FAILURES_IN_A_ROW = 3
_DRAIN_POLL_SECONDS = 0.02
_STOP_SECONDS = 5.0


class BatchingEngine:
    """An `Engine` in a thread of this process: schedule, run, emit.

    A step runs at most `prefill_tokens` tokens of prompts and then one token of every row that is past its prompt, so a
    long prompt delays running rows by one such chunk a step and no more.

    Args:
        runner: Runs the model; used from the engine's thread only.
        max_queue: How many rows may wait for a place in the batch.
        prefill_tokens: How many prompt tokens run in one step.
    """

    def __init__(self, runner: Runner, *, max_queue: int, prefill_tokens: int) -> None:
        self._runner = runner
        self._max_rows = runner.num_slots + max_queue
        self._prefill_tokens = prefill_tokens
        self._wake = threading.Condition()  # guards the fields below
        self._waiting: deque[Row] = deque()
        self._running: list[Row] = []
        self._free_slots = list(range(runner.num_slots))
        self._closing = False
        self._draining = False
        self._fault: str | None = None
        self._failures_in_a_row = 0
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def fault(self) -> Fault | None:
        """Why the engine can no longer run anything, or None."""
        return None if self._fault is None else Fault(self._fault, final=True)

    def start(self) -> None:
        """See `Engine.start`; the thread runs already."""

    def check_room(self, num_rows: int) -> None:
        """Raise what `submit` would raise now; see `Engine.check_room`."""
        if self._fault is not None:
            raise EngineUnavailableError(self._fault)
        if self._draining or self._closing:
            raise EngineUnavailableError("the server is shutting down")
        with self._wake:
            busy = len(self._waiting) + len(self._running)
        if busy + num_rows > self._max_rows:
            raise QueueFullError(
                f"{busy} sequences are running or waiting and the limit is {self._max_rows}; try again later"
            )

    def submit(self, requests: list[RowRequest]) -> ThreadJob:
        """Queue rows that belong together; see `Engine.submit`."""
        job = ThreadJob(len(requests))
        rows = [Row(request, job, index) for index, request in enumerate(requests)]
        with self._wake:
            self.check_room(len(rows))
            self._waiting.extend(rows)
            self._wake.notify()
        return job

    def stats(self) -> EngineStats:
        """Count what is going on."""
        with self._wake:
            return EngineStats(len(self._waiting), len(self._running))

    async def drain(self, timeout: float) -> None:
        """Refuse what waits, let running rows finish for `timeout` seconds, then fail the rest."""
        deadline = time.monotonic() + timeout
        with self._wake:
            self._draining = True
            begun = {row.job for row in self._running}
            not_begun = {row.job for row in self._waiting} - begun
        for job in not_begun:
            job.fail(EngineUnavailableError("the server is shutting down"))
        while (self._running or self._waiting) and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        for job in begun:
            job.fail(EngineUnavailableError("the server shut down before this was finished"))

    def close(self) -> None:
        """Stop for good; whatever still runs is dropped."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(_STOP_SECONDS)

    def _loop(self) -> None:
        while self._fault is None:
            with self._wake:
                while not (self._waiting or self._running or self._closing):
                    self._wake.wait()
                if self._closing:
                    return
                self._schedule()
            try:
                self._step()
            except Exception as error:
                self._fail(list(self._running), error)
                self._count_failure(error)

    def _schedule(self) -> None:
        """Release the places of rows that nobody wants, and give free ones to those that wait longest."""
        for row in [row for row in self._running if not row.wanted]:
            self._release(row)
        while self._waiting and self._free_slots:
            row = self._waiting.popleft()
            if row.wanted:
                row.slot = self._free_slots.pop(0)
                self._running.append(row)
        self._waiting = deque(row for row in self._waiting if row.wanted)

    def _release(self, row: Row) -> None:
        self._running.remove(row)
        self._free_slots.append(row.slot)
        self._free_slots.sort()

    def _step(self) -> None:
        """Run one chunk of prompts, then one token of every row that is past its prompt."""
        # Neighbouring rows in neighbouring slots: the cache can then be used in place.
        decoding = sorted((row for row in self._running if not row.prefilling), key=lambda row: row.slot)
        self._prefill([row for row in self._running if row.prefilling])
        if decoding:
            self._run(decoding, [[row.last_token] for row in decoding])

    def _prefill(self, rows: list[Row]) -> None:
        """Spend the step's budget on prompts, first come, first served."""
        budget = self._prefill_tokens
        for row in rows:
            if budget == 0:
                return
            chunk = list(row.request.prompt_ids[row.num_cached : row.num_cached + budget])
            budget -= len(chunk)
            self._run([row], [chunk])

    def _run(self, rows: list[Row], tokens: list[list[int]]) -> None:
        """Run `tokens` of these rows; those whose prompt is complete get their next token."""
        try:
            logits = self._runner.forward([row.slot for row in rows], tokens, [row.num_cached for row in rows])
            for row, new in zip(rows, tokens, strict=True):
                row.num_cached += len(new)
            if not rows[0].prefilling:
                self._emit(rows, logits)
        except Exception as error:
            self._fail(rows, error)
            self._count_failure(error)
        else:
            self._failures_in_a_row = 0

    def _emit(self, rows: list[Row], logits: Logits) -> None:
        """Draw a token for each row and hand it over; a row without a distribution to draw from fails alone."""
        for row, drawn in zip(rows, self._runner.sample(rows, logits), strict=True):
            if isinstance(drawn, Exception):
                self._fail([row], drawn)
                continue
            finish_reason = row.append(drawn.token)
            if finish_reason is not None:
                with self._wake:
                    self._release(row)
            row.job.post(TokenEvent(row.index, drawn.token, drawn.logprobs, finish_reason))

    def _fail(self, rows: list[Row], error: Exception) -> None:
        """Fail these rows with the true cause; the others go on."""
        _log.error("generation failed", rows=len(rows), exc_info=error)
        with self._wake:
            failed = [row for row in rows if row in self._running]
            for row in failed:
                self._release(row)
        for row in failed:
            row.job.post(EngineError(f"generation failed: {_cause(error)}"))

    def _count_failure(self, error: Exception) -> None:
        """Give up where no step works any more: better to be seen as failed than to fail every request."""
        self._failures_in_a_row += 1
        if self._failures_in_a_row < _MAX_FAILURES_IN_A_ROW:
            return
        with self._wake:
            self._fault = f"the engine failed {self._failures_in_a_row} times in a row, last with {_cause(error)}"
            failed = [*self._running, *self._waiting]
            self._running.clear()
            self._waiting.clear()
        for row in failed:
            row.job.post(EngineUnavailableError(self._fault))


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
