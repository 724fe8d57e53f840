"""Times one request's sequences, from its arrival on."""

import time

from services.inference.engine.client.request_handle import RequestHandle
from services.inference.engine.types import SequenceEvent, TokenEvent
from services.inference.metrics import InferenceMetrics
from shared.http import add_log_fields, request_started


class Meter:
    """Measures events when they leave the engine, not when a slow reader lets their handler see them.

    Each sequence has its own clock, so that a neighbour's token is never taken for its own.
    """

    def __init__(self, metrics: InferenceMetrics, job: RequestHandle) -> None:
        self._metrics = metrics
        self._job = job
        self._arrived = request_started()
        self._latest: dict[int, float] = {}  # when each row's latest token came
        self._prompt_at: float | None = None  # when the first of what kind came
        self._token_at: float | None = None
        job.observer = self.feed

    @property
    def begun(self) -> bool:
        """Whether anything has come."""
        return self._prompt_at is not None

    def feed(self, event: SequenceEvent) -> None:
        """Measure an event that comes just now."""
        now = time.perf_counter()
        if self._prompt_at is None:
            self._prompt_at = now
        if isinstance(event, TokenEvent):
            latest = self._latest.get(event.sequence_index)
            if latest is not None:
                self._metrics.token_seconds.observe(now - latest)
            elif self._token_at is None:
                self._token_at = now
                self._metrics.first_token_seconds.observe(now - self._arrived)
            self._latest[event.sequence_index] = now

    def finish(self) -> None:
        """Every sequence has ended as it should."""
        self._metrics.generation_seconds.observe(time.perf_counter() - self._arrived)

    def note(self) -> None:
        """Put the times into the request's log line and trace."""
        started_at = self._job.started_at
        if started_at is not None:
            add_log_fields(queue_ms=_ms(started_at - self._arrived))
            if self._prompt_at is not None:
                add_log_fields(prefill_ms=_ms(self._prompt_at - started_at))
        if self._token_at is not None:
            latest = max(self._latest.values())
            add_log_fields(first_token_ms=_ms(self._token_at - self._arrived), decode_ms=_ms(latest - self._token_at))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
