"""The engine's core: `schedule → run → postprocess`, one step at a time, on any runner."""

from collections.abc import Iterable, Iterator

import structlog

from services.inference.engine.errors import NO_DISTRIBUTION
from services.inference.engine.runner.protocol import Runner, RunnerLostError, Segment, StepResult
from services.inference.engine.scheduling.prefill import TokensBeside
from services.inference.engine.scheduling.recovery import BatchSplitter, RunnerProbe
from services.inference.engine.scheduling.scheduler import ScheduledBatch, Scheduler
from services.inference.engine.scheduling.sequence import ScheduledSequence, Sequence, SequenceId, Status
from services.inference.engine.types import (
    BLOCK_SIZE,
    CoreEvent,
    EngineStats,
    FailEvent,
    FinishReason,
    PromptEvent,
    SampledToken,
    SequenceRequest,
    StartEvent,
    TokenEvent,
)
from shared.lm.sampling_params import NO_TOKEN

_log = structlog.get_logger("ownlm.engine")


class EngineCore:
    """Continuous batching over a paged KV cache. Not thread-safe.

    Args:
        runner: Runs the model.
        prefill_tokens: The most prompt tokens that run in one step, beside one token of every decoding sequence; fewer
            where the runner's steps are smaller.
        min_prefill_tokens: While sequences decode, a step takes as many prompt tokens as sequences, in whole blocks, so
            that it lasts about twice as long as without; and at least this many. Raise it where a step of few tokens
            costs as much as one of many.
        tokens_beside: How many prompt tokens a step of so many decoding sequences has time for; where it knows, it
            decides instead. Once in 200 tokens of all decoding sequences, a step may be long nevertheless.

    Raises:
        ValueError: The runner's steps have no room for one prompt token beside all slots.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        prefill_tokens: int,
        min_prefill_tokens: int = BLOCK_SIZE,
        tokens_beside: TokensBeside = lambda _: None,
    ) -> None:
        room = runner.max_step_tokens - runner.num_slots
        if min(room, prefill_tokens) < 1:
            raise ValueError(
                f"no room for prompts in a step: {runner.max_step_tokens} tokens, of which {runner.num_slots} are for "
                f"decoding, and prefill_tokens is {prefill_tokens}"
            )
        self._runner = runner
        self._scheduler = Scheduler(runner, min(room, prefill_tokens), min_prefill_tokens, tokens_beside)
        self._splitter = BatchSplitter(runner.num_slots)
        self._probe = RunnerProbe(runner, self._scheduler)
        self._sequences: dict[SequenceId, Sequence] = {}  # those that are not finished
        self._events: list[CoreEvent] = []
        self._counts = EngineStats(kv_blocks_total=runner.num_blocks)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences)

    @property
    def failures_in_a_row(self) -> int:
        """How often a sequence failed and the probe of the runner did too, since the last step that ran."""
        return self._probe.num_failures

    def submit(self, request_id: int, requests: Iterable[SequenceRequest]) -> None:
        """Queue the sequences of a request; they are numbered from 0. The caller limits the queue's length.

        Raises:
            RequestTooLargeError: One of them needs more blocks than there are; none was queued.
        """
        sequences = []
        for index, request in enumerate(requests):
            request.check_fits_cache(self._runner.num_blocks)
            sequences.append(Sequence(SequenceId(request_id, index), request))
        self._sequences |= {sequence.id: sequence for sequence in sequences}
        self._scheduler.waiting.add(request_id, sequences)

    def cancel(self, request_id: int, index: int | None = None) -> None:
        """Drop one sequence of a request, or all, at once; does nothing where they are finished or unknown."""
        if index is None:
            canceled = [sequence for id_, sequence in self._sequences.items() if id_.request_id == request_id]
        else:
            sequence = self._sequences.get(SequenceId(request_id, index))
            canceled = [] if sequence is None else [sequence]
        for sequence in canceled:
            self._finish(sequence)

    def step(self) -> list[CoreEvent]:
        """Run one step and return its events.

        A fault of the runner fails sequences, with the cause, and never raises: a batch of several sequences whose step
        raises is run again in halves, down to single sequences, and those fail that raise alone. Only a fault of the
        core itself or `RunnerLostError` is raised.
        """
        self._events = []
        batch = self._schedule()
        if batch.scheduled:
            result = self._run(batch.scheduled)
            if result is not None:
                self._postprocess(batch.scheduled, result)
        return self._events

    def stats(self) -> EngineStats:
        """Return the current numbers."""
        scheduler = self._scheduler
        return self._counts._replace(
            num_waiting=len(scheduler.waiting),
            num_running=len(scheduler.running),
            kv_blocks_used=scheduler.pool.num_held,
            kv_blocks_cached=scheduler.pool.num_cached,
            kv_blocks_allocated=scheduler.pool.num_ready,
            preemptions=scheduler.num_preemptions,
        )

    def _schedule(self) -> ScheduledBatch:
        """The next part of the batch that was split last, or a new batch."""
        if part := self._splitter.next_part():
            return ScheduledBatch(part)
        batch = self._scheduler.schedule()
        for sequence in batch.admitted:
            self._events.append(StartEvent(*sequence.id, sequence.request.arrived_at))
        for sequence, error in batch.failed:
            del self._sequences[sequence.id]
            self._events.append(FailEvent(*sequence.id, _failure_message(error)))
        if batch.failed:
            self._probe.check()
        batch.scheduled = self._splitter.split(batch.scheduled)
        return batch

    def _run(self, scheduled: list[ScheduledSequence]) -> StepResult | None:
        """Run a step; None if it failed, which has been dealt with then."""
        segments = [one.segment() for one in scheduled]
        try:
            result = self._runner.run(segments)
            _check_result(segments, result)
        except Exception as error:
            message = _failure_message(error)
            _log.error("step failed", rows=len(scheduled), exc_info=error)
            if len(scheduled) > 1:
                self._run_in_halves(scheduled)
            else:
                sequence = scheduled[0].sequence
                for failed in (*sequence.followers, sequence):
                    self._fail(failed, message)
                self._splitter.lift_limit()
                self._probe.check()
            return None
        self._probe.record_success()
        self._splitter.record_success()
        return result

    def _run_in_halves(self, scheduled: list[ScheduledSequence]) -> None:
        """Undo a failed step and run it again in two parts, so that only sequences fail that fail alone.

        Their keys and values count as far as the last step that ran, and so must what the runner sampled.
        """
        failed = False
        for sequence in [sequence for one in scheduled for sequence in one.sampled_sequences]:
            try:
                self._scheduler.reopen(sequence)
            except Exception as error:
                self._fail(sequence, _failure_message(error))
                failed = True
        if failed:
            self._probe.check()
        self._splitter.halve(scheduled)

    def _postprocess(self, scheduled: list[ScheduledSequence], result: StepResult) -> None:
        """Apply the result of a step: first the cache, then each sequence's events."""
        self._count(scheduled, result)
        sampled = iter(result.sampled_tokens)
        for one, scores in zip(scheduled, result.prompt_logprobs or [[]] * len(scheduled), strict=True):
            sequence = one.sequence
            sequence.prompt_logprobs.extend(scores)
            self._scheduler.advance(one)
            if one.end < sequence.num_tokens:
                continue
            group = (sequence, *sequence.followers)
            for follower in group[1:]:
                self._fork(sequence, follower)
            for member in group:
                self._append_token(member, sampled)

    def _count(self, scheduled: list[ScheduledSequence], result: StepResult) -> None:
        prefilled = sum(end - start for sequence, start, end in scheduled if not sequence.is_decoding)
        counts = self._counts
        self._counts = counts._replace(
            steps=counts.steps + 1,
            prefill_tokens=counts.prefill_tokens + prefilled,
            generated_tokens=counts.generated_tokens + len(result.sampled_tokens),
        )

    def _fork(self, leader: Sequence, follower: Sequence) -> None:
        try:
            self._scheduler.fork(leader, follower)
        except Exception as error:
            self._fail(follower, _failure_message(error))
            self._probe.check()

    def _append_token(self, sequence: Sequence, sampled: Iterator[SampledToken]) -> None:
        """Add the sampled token to a sequence whose prompt is computed, and report what is new."""
        token = next(sampled) if sequence.request.max_tokens else None
        if sequence.status is Status.FINISHED:
            return  # its block could not be copied
        if not sequence.prompt_reported:
            self._report_prompt(sequence)
        if token is None:
            self._finish(sequence)
        elif token.token == NO_TOKEN:
            self._fail(sequence, NO_DISTRIBUTION)
        else:
            finish_reason = sequence.append(token.token)
            self._events.append(TokenEvent(*sequence.id, token.token, token.logprobs, finish_reason))
            if finish_reason is not None:
                self._finish(sequence)

    def _report_prompt(self, sequence: Sequence) -> None:
        self._scheduler.end_prefill(sequence)
        request, counts = sequence.request, self._counts
        self._counts = counts._replace(
            prefix_tokens_looked_up=counts.prefix_tokens_looked_up + len(request.prompt_ids),
            prefix_tokens_hit=counts.prefix_tokens_hit + sequence.num_cached,
        )
        logprobs = None if request.num_prompt_logprobs is None else tuple(sequence.prompt_logprobs)
        finish_reason: FinishReason | None = None if request.max_tokens else "length"
        self._events.append(PromptEvent(*sequence.id, sequence.num_cached, logprobs, finish_reason))
        sequence.prompt_reported, sequence.prompt_logprobs = True, []

    def _fail(self, sequence: Sequence, message: str) -> None:
        """Finish a sequence with an error. What it computed may be wrong and must be no cache hit."""
        self._scheduler.pool.invalidate(sequence.blocks)
        self._finish(sequence)
        self._events.append(FailEvent(*sequence.id, message))

    def _finish(self, sequence: Sequence) -> None:
        self._scheduler.finish(sequence)
        del self._sequences[sequence.id]


def _check_result(segments: list[Segment], result: StepResult) -> None:
    """Raise if a runner returned something else than it was asked for, before any of it is used."""
    expected = [slot for segment in segments for slot in segment.sample_slots]
    sampled = [token.slot for token in result.sampled_tokens]
    if sampled != expected:
        raise RuntimeError(f"the runner sampled for slots {sampled} instead of {expected}")
    scored = [len(scores) for scores in result.prompt_logprobs] or [0] * len(segments)
    if scored != [len(segment.targets) for segment in segments]:
        raise RuntimeError("the runner scored other prompt tokens than requested")


def _failure_message(error: Exception) -> str:
    """The message of a sequence that fails with an error; raises a `RunnerLostError`, which is no sequence's fault."""
    if isinstance(error, RunnerLostError):
        raise error
    return f"generation failed: {type(error).__name__}: {error}".rstrip(": ")
