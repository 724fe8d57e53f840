"""After a step that failed: find the sequence that is to blame, and whether the runner still runs anything."""

from collections import deque

import structlog

from services.inference.engine.runner.protocol import Runner, RunnerLostError, Segment
from services.inference.engine.scheduling.scheduler import Scheduler
from services.inference.engine.scheduling.sequence import ScheduledSequence, Status
from services.inference.engine.types import SequenceRequest
from shared.lm import SamplingParams

_log = structlog.get_logger("ownlm.engine")

_FAULT_FREE_STEPS = 100  # after which steps of twice as many sequences are tried again

_PROBE = SequenceRequest((0,), SamplingParams(temperature=0.0), max_tokens=1, stop_ids=frozenset())


class BatchSplitter:
    """Halves a batch whose step failed, down to single sequences, and keeps later batches as small as those that ran.

    Args:
        max_sequences: The most sequences of a batch without faults.
    """

    def __init__(self, max_sequences: int) -> None:
        self._max_sequences = self._limit = max_sequences
        self._pending: deque[list[ScheduledSequence]] = deque()
        self._num_fault_free_steps = 0

    def split(self, scheduled: list[ScheduledSequence]) -> list[ScheduledSequence]:
        """Return as many of the sequences as may run at once; the others are the next parts."""
        size = self._limit
        first, *others = [scheduled[start : start + size] for start in range(0, len(scheduled), size)] or [[]]
        self._pending.extendleft(reversed(others))
        return first

    def next_part(self) -> list[ScheduledSequence]:
        """The next part of the batch that was split last; empty if all have run."""
        while self._pending:
            # Nothing was scheduled meanwhile, so the parts are still valid, but for sequences that have finished.
            if part := [one for one in self._pending.popleft() if one.sequence.status is Status.RUNNING]:
                return self.split(part)
        return []

    def halve(self, failed: list[ScheduledSequence]) -> None:
        """Run a batch that failed again in two parts, and no larger ones for a while."""
        self._limit = -(-len(failed) // 2)
        self._num_fault_free_steps = 0
        self._pending.appendleft(failed)

    def record_success(self) -> None:
        """A step ran: allow larger ones after enough of them."""
        self._num_fault_free_steps += 1
        if self._num_fault_free_steps % _FAULT_FREE_STEPS == 0:
            self._limit = min(2 * self._limit, self._max_sequences)

    def lift_limit(self) -> None:
        """A sequence failed alone: it was to blame for the faults before it, not the size of the batch."""
        self._limit = self._max_sequences


class RunnerProbe:
    """Distinguishes a sequence that fails from a broken runner, by what a sequence needs for one token.

    Attributes:
        num_failures: How often the runner failed without a step or probe that ran in between.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler) -> None:
        self.num_failures = 0
        self._runner = runner
        self._scheduler = scheduler

    def record_success(self) -> None:
        """A step ran."""
        self.num_failures = 0

    def check(self) -> None:
        """Probe the runner after a sequence failed.

        Raises:
            RunnerLostError: From the runner.
        """
        pool = self._scheduler.pool
        if not pool.num_available:
            return  # other sequences hold all blocks: their next step is the probe
        block = pool.allocate()
        try:
            self._run(self._scheduler.free_slots[-1], block)
        except RunnerLostError:
            raise
        except Exception as error:
            self.num_failures += 1
            _log.error("runner health check failed", failures_in_a_row=self.num_failures, exc_info=error)
        else:
            self.num_failures = 0
        finally:
            pool.release([block])

    def _run(self, slot: int, block: int) -> None:
        """Open a slot, copy a block to itself, and sample one token."""
        self._runner.open_slot(slot, _PROBE)
        try:
            self._runner.copy_block(block, block)
            self._runner.run([Segment(_PROBE.prompt_ids, 0, (block,), (slot,))])
        finally:
            self._runner.close_slot(slot)
