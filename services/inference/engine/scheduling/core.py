"""The engine's core: `schedule → run → emit`, one step at a time, on any runner."""

from collections import deque
from collections.abc import Iterator, Sequence

import structlog

from services.inference.engine.limits import check_fits
from services.inference.engine.runner.protocol import (
    BLOCK_SIZE,
    NO_DISTRIBUTION,
    Draw,
    Runner,
    RunnerLostError,
    Segment,
    StepResult,
    check_result,
)
from services.inference.engine.scheduling.scheduler import Plan, Scheduler, Work
from services.inference.engine.scheduling.sequence import Row
from services.inference.engine.types import (
    CoreEvent,
    EngineStats,
    FailEvent,
    PromptEvent,
    RowRequest,
    StartEvent,
    TokenEvent,
)
from shared.lm.sampling_params import NO_TOKEN

_log = structlog.get_logger("ownlm.engine")

_SOUND_STEPS = 100  # without a fault, after which steps of twice as many rows are tried again


class EngineCore:
    """Continuous batching over a paged KV cache. Not thread-safe: whoever owns it calls everything.

    Args:
        runner: Runs the model.
        prefill_tokens: The most prompt tokens that run in one step, beside one token of every decoding row; fewer
            where the runner's steps are smaller.
        min_prefill_tokens: While rows decode, a step takes as many prompt tokens as rows, in whole blocks, so that it
            lasts about twice as long as without; and so many in any case. Raise it where a step of few tokens costs as
            much as one of many.

    Raises:
        ValueError: The runner's steps have no room for one prompt token beside all rows.
    """

    def __init__(self, runner: Runner, *, prefill_tokens: int, min_prefill_tokens: int = BLOCK_SIZE) -> None:
        room = runner.max_step_tokens - runner.max_rows
        if min(room, prefill_tokens) < 1:
            raise ValueError(
                f"no room for prompts in a step: {runner.max_step_tokens} tokens, of which {runner.max_rows} are the "
                f"rows' own, and prefill_tokens is {prefill_tokens}"
            )
        self._runner = runner
        self._scheduler = Scheduler(runner, min(room, prefill_tokens), min_prefill_tokens)
        self._rows: dict[int, dict[int, Row]] = {}
        self._parts: deque[list[Work]] = deque()  # of a planned step: each is to run by itself
        self._most_segments = runner.max_rows
        self._sound_steps = 0
        self._failures_in_a_row = 0
        self._events: list[tuple[int, CoreEvent]] = []
        self._counts = EngineStats(kv_blocks_total=runner.num_blocks)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._rows)

    @property
    def failures_in_a_row(self) -> int:
        """How often rows failed and a plain request in their place did too, since the last good step."""
        return self._failures_in_a_row

    def submit(self, job_id: int, requests: Sequence[RowRequest]) -> None:
        """Queue rows that belong together; they are numbered from 0. The queue's length is the caller's to limit.

        Raises:
            RequestTooLargeError: One of them needs more blocks than there are; none was queued.
        """
        for request in requests:
            check_fits(1, len(request.prompt_ids), request.max_tokens, num_places=1, num_blocks=self._runner.num_blocks)
        rows = {index: Row(job_id, index, request) for index, request in enumerate(requests)}
        if rows:
            self._rows[job_id] = rows
            self._scheduler.waiting.add(job_id, rows.values())

    def cancel(self, job_id: int, row: int | None = None) -> None:
        """Forget one row, or all rows of a job, at once; does nothing where they are finished or unknown."""
        rows = self._rows.get(job_id, {})
        for cancelled in [found for index, found in rows.items() if row in {None, index}]:
            self._drop(cancelled)

    def step(self) -> list[tuple[int, CoreEvent]]:
        """Run one step and return what it gave, each event with its job.

        A fault of the runner fails rows, with the true cause, and never raises: a step of several rows that raises is
        run again in halves, down to single rows, and those fail that raise alone. What does raise here is a fault of
        the core itself, or `RunnerLostError`.
        """
        self._events = []
        plan = self._plan()
        for row in plan.started:
            self._post(row, StartEvent(row.index, row.request.arrived_at))
        for row, error in plan.failed:
            self._forget(row)
            self._post(row, FailEvent(row.index, _cause(error)))
        if plan.failed:
            self._probe()
        if plan.work:
            self._run(plan.work)
        return self._events

    def stats(self) -> EngineStats:
        """Count what is going on."""
        scheduler = self._scheduler
        return self._counts._replace(
            waiting_rows=len(scheduler.waiting),
            running_rows=len(scheduler.running),
            kv_blocks_used=scheduler.pool.num_held,
            kv_blocks_cached=scheduler.pool.num_idle,
            preemptions=scheduler.num_preemptions,
        )

    def _plan(self) -> Plan:
        """The next part of the step that was planned last, or of a new one."""
        while self._parts:
            # No step is planned meanwhile, so the parts still hold, but for the rows that are gone.
            if work := [one for one in self._parts.popleft() if one.row.place >= 0]:
                return Plan(self._first_part(work))
        plan = self._scheduler.plan()
        plan.work = self._first_part(plan.work)
        return plan

    def _first_part(self, work: list[Work]) -> list[Work]:
        """As much as may run at once; the rest is to run next."""
        first, *others = _cut(work, self._most_segments) or [[]]
        self._parts.extendleft(reversed(others))
        return first

    def _run(self, work: list[Work]) -> None:
        segments = [_segment(one) for one in work]
        try:
            result = self._runner.run(segments)
            check_result(segments, result)
        except Exception as error:
            cause = _cause(error)
            _log.error("step failed", rows=len(work), exc_info=error)
            if len(work) > 1:
                self._halve(work)
            else:
                self._fail_all(work[0].row, cause)
                self._most_segments = self._runner.max_rows  # that row was to blame, not the number of rows
                self._probe()
        else:
            self._failures_in_a_row = 0
            self._sound_steps += 1
            if self._sound_steps % _SOUND_STEPS == 0:
                self._most_segments = min(2 * self._most_segments, self._runner.max_rows)
            self._count(work, result)
            self._emit(work, result)

    def _halve(self, work: list[Work]) -> None:
        """Run a failed step again in two parts, and no larger ones for a while: so only rows fail that fail alone.

        Their keys and values count as far as the last good step, and so must their samplers.
        """
        failed = False
        for row in [row for one in work for row in _drawing(one)]:
            try:
                self._scheduler.reopen(row)
            except Exception as error:
                self._fail(row, _cause(error))
                failed = True
        if failed:
            self._probe()
        self._most_segments = -(-len(work) // 2)
        self._sound_steps = 0
        self._parts.appendleft(work)

    def _probe(self) -> None:
        """Distinguish a bad row from a broken runner: do all that a row needs for one token, for no row."""
        pool = self._scheduler.pool
        if not pool.num_available:
            return  # a row that was not opened left none; others hold all, and their next step shows
        block = pool.allocate()
        try:
            self._scheduler.probe(block)
        except Exception as error:
            _cause(error)
            self._failures_in_a_row += 1
            _log.error("the runner runs nothing", failures_in_a_row=self._failures_in_a_row, exc_info=error)
        else:
            self._failures_in_a_row = 0
        finally:
            pool.release([block])

    def _count(self, work: list[Work], result: StepResult) -> None:
        prefilled = sum(end - start for row, start, end in work if not row.decoding)
        counts = self._counts
        self._counts = counts._replace(
            steps=counts.steps + 1,
            prefill_tokens=counts.prefill_tokens + prefilled,
            generated_tokens=counts.generated_tokens + len(result.draws),
        )

    def _emit(self, work: list[Work], result: StepResult) -> None:
        """Take over what the step gave: first the cache, then each row's events."""
        draws = iter(result.draws)
        for one, scores in zip(work, result.prompt_logprobs or [[]] * len(work), strict=True):
            row = one.row
            row.prompt_logprobs.extend(scores)
            self._scheduler.advance(one)
            if one.end < row.num_tokens:
                continue
            group = (row, *row.followers)
            for follower in group[1:]:
                self._fork(row, follower)
            for member in group:
                self._step_row(member, draws)

    def _fork(self, leader: Row, follower: Row) -> None:
        try:
            self._scheduler.fork(leader, follower)
        except Exception as error:
            self._fail(follower, _cause(error))
            self._probe()

    def _step_row(self, row: Row, draws: Iterator[Draw]) -> None:
        """Tell that a row's prompt is done, where that is news, and the token that it drew."""
        draw = next(draws) if row.request.max_tokens else None
        if row.place < 0:
            return  # its block could not be copied
        if not row.prompt_done:
            self._end_prompt(row)
        if draw is None:
            self._drop(row)
        elif draw.token == NO_TOKEN:
            self._fail(row, NO_DISTRIBUTION)
        else:
            finish_reason = row.append(draw.token)
            self._post(row, TokenEvent(row.index, draw.token, draw.logprobs, finish_reason))
            if finish_reason is not None:
                self._drop(row)

    def _end_prompt(self, row: Row) -> None:
        self._scheduler.end_prefill(row)
        num_tokens, counts = len(row.request.prompt_ids), self._counts
        self._counts = counts._replace(
            prefix_tokens_looked_up=counts.prefix_tokens_looked_up + num_tokens,
            prefix_tokens_hit=counts.prefix_tokens_hit + row.num_cached,
        )
        logprobs = None if row.request.num_prompt_logprobs is None else tuple(row.prompt_logprobs)
        self._post(row, PromptEvent(row.index, row.num_cached, logprobs, None if row.request.max_tokens else "length"))
        row.prompt_done, row.prompt_logprobs = True, []

    def _fail_all(self, row: Row, message: str) -> None:
        for failed in (*row.followers, row):
            self._fail(failed, message)

    def _fail(self, row: Row, message: str) -> None:
        """End a row with a message. What it computed may be wrong: nobody is to find it."""
        self._scheduler.pool.forget(row.blocks)
        self._drop(row)
        self._post(row, FailEvent(row.index, message))

    def _drop(self, row: Row) -> None:
        self._scheduler.remove(row)
        self._forget(row)

    def _forget(self, row: Row) -> None:
        rows = self._rows[row.job_id]
        del rows[row.index]
        if not rows:
            del self._rows[row.job_id]

    def _post(self, row: Row, event: CoreEvent) -> None:
        self._events.append((row.job_id, event))


def _cut(work: list[Work], size: int) -> list[list[Work]]:
    return [work[first : first + size] for first in range(0, len(work), size)]


def _segment(work: Work) -> Segment:
    row, start, end = work
    request = row.request
    draws = tuple(drawing.place for drawing in _drawing(work))
    if row.decoding:
        return Segment((row.output[-1],), start, row.blocks, draws)
    tokens = row.tokens(start, end)
    if not row.scores_prompt:
        return Segment(tokens, start, row.blocks, draws)
    targets = request.prompt_ids[start + 1 : end + 1]
    return Segment(tokens, start, row.blocks, draws, targets, request.num_prompt_logprobs or 0)


def _drawing(work: Work) -> list[Row]:
    """The rows that draw from the logits after the work's last token."""
    row = work.row
    if work.end < row.num_tokens:
        return []
    return [member for member in (row, *row.followers) if member.request.max_tokens]


def _cause(error: Exception) -> str:
    """The message of a row that fails for this error; raises the error that is no row's fault."""
    if isinstance(error, RunnerLostError):
        raise error
    return f"generation failed: {type(error).__name__}: {error}".rstrip(": ")
