"""A request that is being generated: the events of its sequences become deltas of its choices, and are measured."""

import time
from collections.abc import AsyncIterator, Sequence

from services.inference.engine import (
    EngineError,
    EngineUnavailableError,
    PromptEvent,
    QueueFullError,
    RequestHandle,
    RequestTimeoutError,
    RequestTooLargeError,
    SequenceEvent,
    TokenEvent,
    UnsupportedFieldError,
)
from services.inference.generation.detokenizer import Delta, Detokenizer
from services.inference.generation.loading import ServedModel
from services.inference.generation.prepare import PreparedRequest
from services.inference.metrics import InferenceMetrics
from shared.bpe import Tokenizer
from shared.http import ApiError, add_log_fields, request_started

_STATUS: dict[type[EngineError], int] = {
    QueueFullError: 429,
    EngineUnavailableError: 503,
    RequestTimeoutError: 504,
    RequestTooLargeError: 400,
    UnsupportedFieldError: 400,
}
_RETRY_AFTER = {"Retry-After": "1"}


class Generation:
    """Submits a request's sequences and yields what they add to its choices.

    Attributes:
        prepared: The request.
        num_completion_tokens: Tokens generated so far, all choices together.

    Raises:
        ApiError: The engine refuses the request.
    """

    def __init__(
        self, prepared: PreparedRequest, model: ServedModel, metrics: InferenceMetrics, *, log_prompts: bool = False
    ) -> None:
        self.prepared = prepared
        self.num_completion_tokens = 0
        self._metrics = metrics
        self._texts = [""] * prepared.num_choices if log_prompts else None
        self._detokenizers = [_detokenizer(index, prepared, model.tokenizer) for index in range(prepared.num_choices)]
        self._to_echo = set(range(prepared.num_choices)) if prepared.request.echoes else set()
        self._cached: list[int | None] = [None] * len(prepared.prompts)
        self._unfinished = set(range(prepared.num_choices))
        self._timing = RequestTiming(metrics)
        self._handle: RequestHandle | None = None
        if not prepared.sequences:
            return
        try:
            self._handle = model.engine.submit(prepared.sequences)
        except EngineError as error:
            raise to_api_error(error) from error
        self._handle.observer = self._timing.observe

    @property
    def is_finished(self) -> bool:
        """Whether all choices have their finish reason, or the request failed."""
        return not self._unfinished

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were in the prefix cache. A prompt counts once, however many choices continue it."""
        return sum(cached or 0 for cached in self._cached)

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """Yield what each step of the model added; each choice's last delta has its finish reason.

        Raises:
            ApiError: The engine failed.
        """
        if self._handle is None:
            yield [self._finish(Delta(index, finish_reason="length")) for index in range(self.prepared.num_choices)]
            return
        try:
            async for events in self._handle:
                deltas = self._take(events)
                if self._texts is not None:
                    for delta in deltas:
                        self._texts[delta.index] += delta.text
                if deltas:
                    yield deltas
        except EngineError as error:
            self._unfinished.clear()
            self._metrics.failed.inc()
            raise to_api_error(error) from error
        self._timing.finish()

    def close(self) -> None:
        """Cancel the sequences that still run, and log the request's figures; called once, at the end."""
        if self._handle is None:
            return
        if self._unfinished:
            self._unfinished.clear()
            self._handle.cancel()
            self._metrics.cancelled.inc()
            add_log_fields(cancelled=True)
        if self._timing.has_events:
            self._metrics.prompt_tokens.inc(self.prepared.num_prompt_tokens)
            self._metrics.cached_tokens.inc(self.num_cached_tokens)
        add_log_fields(
            prompt_tokens=self.prepared.num_prompt_tokens,
            completion_tokens=self.num_completion_tokens,
            cached_tokens=self.num_cached_tokens,
        )
        self._timing.log(self._handle.started_at)
        if self._texts is not None:
            add_log_fields(prompt=[prompt.text for prompt in self.prepared.prompts], answer=self._texts)

    def _take(self, events: Sequence[SequenceEvent]) -> list[Delta]:
        deltas = []
        num_tokens = 0
        for event in events:
            if event.sequence_index not in self._unfinished:  # a stop string ended the choice earlier in this list
                continue
            if isinstance(event, PromptEvent):
                delta = self._take_prompt(event)
            else:
                num_tokens += 1
                delta = self._detokenizers[event.sequence_index].feed(event)
            if delta is not None:
                deltas.append(self._finish(delta))
        self.num_completion_tokens += num_tokens
        self._metrics.generated_tokens.inc(num_tokens)
        return deltas

    def _take_prompt(self, event: PromptEvent) -> Delta | None:
        prompt = self.prepared.prompt_index(event.sequence_index)
        cached = self._cached[prompt]  # of the sequence that computed most of it
        self._cached[prompt] = event.num_cached_tokens if cached is None else min(cached, event.num_cached_tokens)
        if event.logprobs is None and event.finish_reason is None:
            return None
        return Delta(event.sequence_index, prompt_logprobs=event.logprobs, finish_reason=event.finish_reason)

    def _finish(self, delta: Delta) -> Delta:
        """Put the echo before a choice's first delta; after its last one, drop its sequence if that still runs."""
        if delta.index in self._to_echo:
            self._to_echo.remove(delta.index)
            delta.text = self.prepared.prompt_of(delta.index).text + delta.text
        if delta.finish_reason is not None:
            self._unfinished.discard(delta.index)
            if self._handle is not None:
                self._handle.drop(delta.index)
        return delta


def _detokenizer(index: int, prepared: PreparedRequest, tokenizer: Tokenizer) -> Detokenizer:
    request = prepared.request
    detokenizer = Detokenizer(
        index,
        tokenizer,
        prepared.stops,
        prepared.special_stops,
        request.min_tokens or 0,
        continues=prepared.prompt_of(index).has_text,
        splits_characters=request.splits_characters,
    )
    detokenizer.skip(request.given_tokens)
    return detokenizer


class RequestTiming:
    """Measures events when they leave the engine, not when a slow reader lets their handler see them.

    The time between tokens is measured for each sequence: a token of another one does not count.
    """

    def __init__(self, metrics: InferenceMetrics) -> None:
        self._metrics = metrics
        self._arrived_at = request_started()
        self._last_token_at: dict[int, float] = {}  # by sequence index
        self._first_event_at: float | None = None
        self._first_token_at: float | None = None

    @property
    def has_events(self) -> bool:
        """Whether the engine has sent anything."""
        return self._first_event_at is not None

    def observe(self, event: SequenceEvent) -> None:
        """Measure an event that arrives now."""
        now = time.perf_counter()
        if self._first_event_at is None:
            self._first_event_at = now
        if isinstance(event, TokenEvent):
            previous = self._last_token_at.get(event.sequence_index)
            if previous is not None:
                self._metrics.token_seconds.observe(now - previous)
            elif self._first_token_at is None:
                self._first_token_at = now
                self._metrics.first_token_seconds.observe(now - self._arrived_at)
            self._last_token_at[event.sequence_index] = now

    def finish(self) -> None:
        """Measure the whole request: all sequences finished without an error."""
        self._metrics.generation_seconds.observe(time.perf_counter() - self._arrived_at)

    def log(self, started_at: float | None) -> None:
        """Add the times to the request's log line and trace; `started_at`: when its first sequence was admitted."""
        if started_at is not None:
            add_log_fields(queue_ms=_ms(started_at - self._arrived_at))
            if self._first_event_at is not None:
                add_log_fields(prefill_ms=_ms(self._first_event_at - started_at))
        if self._first_token_at is not None:
            last_token_at = max(self._last_token_at.values())
            add_log_fields(
                first_token_ms=_ms(self._first_token_at - self._arrived_at),
                decode_ms=_ms(last_token_at - self._first_token_at),
            )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def to_api_error(error: EngineError) -> ApiError:
    """Keep the engine's message and code; 429 and 503 get `Retry-After`, and other errors are a 500."""
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
    param = error.field if isinstance(error, UnsupportedFieldError) else None
    return ApiError(
        status, str(error), param=param, code=error.code, headers=_RETRY_AFTER if status in (429, 503) else None
    )
