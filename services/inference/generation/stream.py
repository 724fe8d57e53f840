"""A request that is being answered: events of its rows become parts of its choices."""

from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

from services.inference.api.schemas import PromptTokensDetails, Usage
from services.inference.engine import EngineError, PromptEvent, RequestHandle, SequenceEvent
from services.inference.generation.detokenizer import Choice, Delta
from services.inference.generation.failures import as_api_error
from services.inference.generation.loading import ServedModel
from services.inference.generation.prepare import Plan
from services.inference.generation.timing import Meter
from services.inference.metrics import InferenceMetrics
from shared.http import add_log_fields

Step: TypeAlias = list[tuple[int, Delta]]
"""What a step of the model added: pairs of a choice's index and its delta."""


class Generation:
    """Submits a plan's rows and yields what they add to the choices.

    Raises:
        ApiError: The engine refuses them.
    """

    def __init__(self, plan: Plan, model: ServedModel, metrics: InferenceMetrics, *, log_prompts: bool = False) -> None:
        self.plan = plan
        self._metrics = metrics
        self._num_tokens = 0
        self._texts = [""] * plan.num_choices if log_prompts else None
        self._choices = [
            Choice(model.tokenizer, plan.stops, plan.special_stops, plan.min_tokens) for _ in range(plan.num_choices)
        ]
        self._echoed = [not plan.echo] * plan.num_choices
        self._cached: list[int | None] = [None] * len(plan.prompts)
        self._unfinished = set(range(plan.num_choices))
        self._job: RequestHandle | None = None
        if not plan.rows:
            return
        try:
            self._job = model.engine.submit(plan.rows)
        except EngineError as error:
            raise as_api_error(error) from error
        self._meter = Meter(metrics, self._job)

    @property
    def finished(self) -> bool:
        """Whether every choice has its finish reason, or never will."""
        return not self._unfinished

    def usage(self) -> Usage:
        """The tokens so far. A prompt counts once, however many choices continue it."""
        prompt_tokens = self.plan.num_prompt_tokens
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=self._num_tokens,
            total_tokens=prompt_tokens + self._num_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self._num_cached),
        )

    async def steps(self) -> AsyncIterator[Step]:
        """Yield what each step added; each choice's last delta has its finish reason.

        Raises:
            ApiError: The engine could not finish.
        """
        if self._job is None:
            yield [
                (index, self._complete(index, Delta(finish_reason="length"))) for index in range(self.plan.num_choices)
            ]
            return
        try:
            async for events in self._job:
                step = self._feed(events)
                if self._texts is not None:
                    for index, delta in step:
                        self._texts[index] += delta.text
                if step:
                    yield step
        except EngineError as error:
            self._unfinished.clear()
            self._metrics.failed.inc()
            raise as_api_error(error) from error
        self._meter.finish()

    def close(self) -> None:
        """Stop what still runs, and tell the log what there was; called once, when the answer or the client is gone."""
        if self._job is None:
            return
        self._job.observer = None  # its meter, which has the job: they would wait for the collector
        if self._unfinished:
            self._unfinished.clear()
            self._job.cancel()
            self._metrics.cancelled.inc()
            add_log_fields(cancelled=True)
        if self._meter.begun:
            self._metrics.prompt_tokens.inc(self.plan.num_prompt_tokens)
            self._metrics.cached_tokens.inc(self._num_cached)
        add_log_fields(
            prompt_tokens=self.plan.num_prompt_tokens,
            completion_tokens=self._num_tokens,
            cached_tokens=self._num_cached,
        )
        self._meter.note()
        if self._texts is not None:
            add_log_fields(prompt=[prompt.text for prompt in self.plan.prompts], answer=self._texts)

    @property
    def _num_cached(self) -> int:
        return sum(cached or 0 for cached in self._cached)

    def _feed(self, events: Sequence[SequenceEvent]) -> Step:
        step = []
        before = self._num_tokens
        for event in events:
            index = event.sequence_index
            if index not in self._unfinished:  # an answer may end by a stop string before its row does
                continue
            if isinstance(event, PromptEvent):
                delta = self._prompt(event)
            else:
                self._num_tokens += 1
                delta = self._choices[index].feed(event)
            if delta is not None:
                step.append((index, self._complete(index, delta)))
        self._metrics.generated_tokens.inc(self._num_tokens - before)
        return step

    def _prompt(self, event: PromptEvent) -> Delta | None:
        prompt = self.plan.prompt_number(event.sequence_index)
        cached = self._cached[prompt]  # by the row that computed most of it: a prompt counts once
        self._cached[prompt] = event.num_cached_tokens if cached is None else min(cached, event.num_cached_tokens)
        if event.logprobs is None and event.finish_reason is None:
            return None
        return Delta(prompt_logprobs=event.logprobs, finish_reason=event.finish_reason)

    def _complete(self, index: int, delta: Delta) -> Delta:
        """Put the echo before a choice's first delta, and count a choice that its last one ends."""
        if not self._echoed[index]:
            self._echoed[index] = True
            delta.text = self.plan.prompt_of(index).text + delta.text
        if delta.finish_reason is not None:
            self._unfinished.discard(index)
            if self._job is not None:
                self._job.drop(index)
        return delta
