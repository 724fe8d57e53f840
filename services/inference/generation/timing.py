"""Latencies of one request's sequences, measured from the request's arrival."""

import time

from services.inference.engine import SequenceEvent, TokenEvent
from services.inference.metrics import InferenceMetrics
from shared.http import add_log_fields, request_started


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
