"""Times one request's sequences, from its arrival on."""

import time
from collections.abc import Sequence

from services.inference.engine.request import FailEvent, PromptEvent, StartEvent, TokenEvent
from services.inference.metrics import InferenceMetrics
from shared.http import note, request_started


class Meter:
    """Measures a request's events; each sequence has its own clock, so that neighbours' tokens never count as its own.

    Args:
        metrics: Where it is counted.
        num_prompt_tokens: Tokens of the prompt, counted when the first answer comes.
    """

    def __init__(self, metrics: InferenceMetrics, num_prompt_tokens: int) -> None:
        self._metrics = metrics
        self._num_prompt_tokens = num_prompt_tokens
        self._arrived = request_started()
        self._latest: dict[int, float] = {}  # when each row's latest token came
        self._queue_seconds: float | None = None
        self._prefill_seconds: float | None = None
        self._first_token_seconds: float | None = None
        self._num_cached = 0
        self.num_tokens = 0

    def feed(self, events: Sequence[StartEvent | PromptEvent | TokenEvent | FailEvent], at: float) -> None:
        """Count events that came at the time `at` of `time.perf_counter`: not when a slow reader lets us see them."""
        num_tokens = 0
        for event in events:
            if isinstance(event, TokenEvent):
                num_tokens += 1
                latest = self._latest.get(event.row)
                if latest is not None:
                    self._metrics.token_seconds.observe(at - latest)
                self._latest[event.row] = at
            elif isinstance(event, StartEvent):
                self._start(at - self._arrived)
            elif isinstance(event, PromptEvent):
                self._prompt(event, at - self._arrived)
        if num_tokens:
            if self._first_token_seconds is None:
                self._first_token_seconds = at - self._arrived
                self._metrics.first_token_seconds.observe(self._first_token_seconds)
            self.num_tokens += num_tokens
            self._metrics.generated_tokens.inc(num_tokens)

    def finish(self) -> None:
        """Every sequence has ended as it should."""
        self._metrics.generation_seconds.observe(time.perf_counter() - self._arrived)

    def note(self) -> None:
        """Put the numbers into the request's log line and trace."""
        note(prompt_tokens=self._num_prompt_tokens, completion_tokens=self.num_tokens, cached_tokens=self._num_cached)
        seconds = {
            "queue_ms": self._queue_seconds,
            "prefill_ms": self._prefill_seconds,
            "first_token_ms": self._first_token_seconds,
        }
        note(**{name: round(value * 1000, 1) for name, value in seconds.items() if value is not None})

    def _start(self, seconds: float) -> None:
        self._metrics.queue_seconds.observe(seconds)
        if self._queue_seconds is None:
            self._queue_seconds = seconds

    def _prompt(self, event: PromptEvent, seconds: float) -> None:
        self._num_cached += event.num_cached_tokens
        self._metrics.cached_tokens.inc(event.num_cached_tokens)
        if self._prefill_seconds is None:
            self._prefill_seconds = seconds - (self._queue_seconds or 0.0)
            self._metrics.prompt_tokens.inc(self._num_prompt_tokens)
