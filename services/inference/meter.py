"""Times one request's sequences, from its arrival on."""

import time
from collections.abc import Sequence

from services.inference.engine.request import PromptEvent, RowEvent, StartEvent, TokenEvent
from services.inference.metrics import InferenceMetrics
from shared.http import note, request_started


class Meter:
    """Measures when a request's events arrive: not when a slow reader lets its handler see them.

    Each sequence has its own clock, so that a neighbour's token is never taken for its own.
    """

    def __init__(self, metrics: InferenceMetrics, num_prompt_tokens: int) -> None:
        self._metrics = metrics
        self._num_prompt_tokens = num_prompt_tokens
        self._arrived = request_started()
        self._num_cached = 0
        self._latest: dict[int, float] = {}  # when each row's latest token came
        self._reached: dict[str, float] = {}  # seconds from the request's arrival to its rows' first start, prompt, token

    def feed(self, events: Sequence[StartEvent | RowEvent]) -> None:
        """Measure events that came just now."""
        now = time.perf_counter()
        for event in events:
            if isinstance(event, TokenEvent):
                latest = self._latest.get(event.row)
                if latest is not None:
                    self._metrics.token_seconds.observe(now - latest)
                elif self._first("token", now):
                    self._metrics.first_token_seconds.observe(now - self._arrived)
                self._latest[event.row] = now
            elif isinstance(event, StartEvent):
                self._first("start", now)
                self._metrics.queue_seconds.observe(now - self._arrived)
            elif isinstance(event, PromptEvent):
                if self._first("prompt", now):
                    self._metrics.prompt_tokens.inc(self._num_prompt_tokens)
                self._num_cached += event.num_cached_tokens
                self._metrics.cached_tokens.inc(event.num_cached_tokens)

    def finish(self) -> None:
        """Every sequence has ended as it should."""
        self._metrics.generation_seconds.observe(time.perf_counter() - self._arrived)

    def note(self, num_tokens: int) -> None:
        """Put the request's numbers into its log line and its trace."""
        note(prompt_tokens=self._num_prompt_tokens, completion_tokens=num_tokens, cached_tokens=self._num_cached)
        names = {"start": "queue_ms", "prompt": "prompt_ms", "token": "first_token_ms"}
        note(**{names[what]: round(seconds * 1000, 1) for what, seconds in self._reached.items()})

    def _first(self, what: str, now: float) -> bool:
        if what in self._reached:
            return False
        self._reached[what] = now - self._arrived
        return True
