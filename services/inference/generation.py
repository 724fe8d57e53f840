"""A request that is being answered: events of its rows become parts of its choices."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import structlog

from services.inference.choice import Choice, Delta
from services.inference.engine import EngineError, EngineUnavailableError, Job, QueueFullError, TokenEvent
from services.inference.loading import ServedModel
from services.inference.metrics import InferenceMetrics
from services.inference.plan import Plan
from services.inference.schemas import Usage
from shared.http import ApiError

_log = structlog.get_logger("ownlm.generate")


@contextmanager
def refusals_as_api_errors() -> Iterator[None]:
    """Turn the engine's refusals into 429 where too many wait, and into 503 where it takes nothing."""
    try:
        yield
    except QueueFullError as error:
        raise ApiError(429, str(error), code="queue_full", headers={"Retry-After": "1"}) from error
    except EngineUnavailableError as error:
        raise ApiError(503, str(error), code="engine_unavailable") from error


class Generation:
    """Submits a plan's rows and yields what they add to the choices.

    Raises:
        ApiError: 429 where too many wait, 503 where the engine takes nothing.
    """

    def __init__(self, plan: Plan, model: ServedModel, metrics: InferenceMetrics) -> None:
        self.plan = plan
        self._metrics = metrics
        self._num_tokens = 0
        self._choices = [Choice(model.tokenizer, plan.stops, plan.special_stops) for _ in plan.rows]
        self._unfinished = plan.num_choices
        self._ended: set[int] = set()  # rows past a stop string
        self._started = time.perf_counter()
        self._job: Job | None = None
        if not plan.rows:
            return
        with refusals_as_api_errors():
            self._job = model.engine.submit(plan.rows)

    @property
    def finished(self) -> bool:
        """Whether every choice has its finish reason."""
        return self._unfinished == 0

    @property
    def usage(self) -> Usage:
        """The tokens so far."""
        return Usage(
            prompt_tokens=self.plan.num_prompt_tokens,
            completion_tokens=self._num_tokens,
            total_tokens=self.plan.num_prompt_tokens + self._num_tokens,
        )

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """Yield pairs of a choice's index and what was added to it; each choice's last one has its finish reason.

        Raises:
            EngineError: The engine could not finish.
        """
        if self._job is None:
            for index in range(self.plan.num_choices):
                self._unfinished -= 1
                yield index, Delta(text=self.plan.echo, finish_reason="length")
            return
        echo_left = set(range(self.plan.num_choices)) if self.plan.echo else set()
        async for event in self._events(self._job):
            self._count_token()
            delta = self._choices[event.row].feed(event)
            if delta is None:
                continue
            if event.row in echo_left:
                echo_left.remove(event.row)
                delta.text = self.plan.echo + delta.text
            if delta.finish_reason is not None:
                self._job.drop(event.row)
                self._ended.add(event.row)
                self._unfinished -= 1
            yield event.row, delta
        self._metrics.generation_seconds.observe(time.perf_counter() - self._started)

    def cancel(self) -> None:
        """Stop what still runs; does nothing where all is finished or has failed."""
        if self._job is not None and not self.finished:
            self._job.cancel()
            self._metrics.cancelled.inc()
            _log.info("cancelled", completion_tokens=self._num_tokens)

    async def _events(self, job: Job) -> AsyncIterator[TokenEvent]:
        try:
            async for events in job:
                for event in events:
                    if isinstance(event, TokenEvent) and event.row not in self._ended:
                        yield event
        except EngineError:
            self._unfinished = 0
            self._metrics.failed.inc()
            raise

    def _count_token(self) -> None:
        if self._num_tokens == 0:
            self._metrics.first_token_seconds.observe(time.perf_counter() - self._started)
            self._metrics.prompt_tokens.inc(self.plan.num_prompt_tokens)
        self._num_tokens += 1
        self._metrics.generated_tokens.inc()
