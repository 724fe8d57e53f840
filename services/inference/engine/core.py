"""The engine's core: `schedule → run → emit`, one step at a time, on any runner."""

from collections.abc import Sequence

from services.inference.engine.request import CoreEvent, EngineStats, RowRequest
from services.inference.engine.step import Runner


class EngineCore:
    """Continuous batching over a paged KV cache. Not thread-safe: whoever owns it calls everything.

    Args:
        runner: Runs the model. `max_step_tokens` must be above `max_rows`.
        prefill_tokens: The most prompt tokens that run in one step, beside one token of every decoding row. Fewer
            where `runner.max_step_tokens - runner.max_rows` is less.
    """

    def __init__(self, runner: Runner, *, prefill_tokens: int) -> None:
        raise NotImplementedError

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        raise NotImplementedError

    @property
    def failures_in_a_row(self) -> int:
        """Steps that raised, since the last one that did not."""
        raise NotImplementedError

    def submit(self, job_id: int, requests: Sequence[RowRequest]) -> None:
        """Queue rows that belong together; they are numbered from 0. The queue's length is the caller's to limit.

        Raises:
            RequestTooLargeError: One of them needs more blocks than there are; none was queued.
        """
        raise NotImplementedError

    def cancel(self, job_id: int, row: int | None = None) -> None:
        """Forget one row, or all rows of a job, at once; does nothing where they are finished or unknown."""
        raise NotImplementedError

    def step(self) -> list[tuple[int, CoreEvent]]:
        """Run one step and return what it gave, each event with its job. Never raises for a fault of the runner: its rows get the cause."""
        raise NotImplementedError

    def stats(self) -> EngineStats:
        """Count what is going on."""
        raise NotImplementedError
