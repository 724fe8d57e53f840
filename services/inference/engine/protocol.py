"""What a service needs of an engine: `EngineClient` is ours, `VllmEngine` runs vLLM."""

from collections.abc import Callable, Iterable
from typing import Protocol

from prometheus_client import Metric

from services.inference.engine.request_handle import RequestHandle
from services.inference.engine.types import EngineStats, Fault, SequenceRequest


class Engine(Protocol):
    """Runs the sequences of many requests at the same time. Used on the event loop only, but for `close`."""

    @property
    def fault(self) -> Fault | None:
        """Why the engine cannot run anything now, or None."""

    @property
    def worker_pid(self) -> int | None:
        """The id of the engine process."""

    async def start(self, on_admitted: Callable[[float], None] = lambda _seconds: None) -> None:
        """Begin; called once.

        Args:
            on_admitted: Called with the seconds that each sequence waited for its slot.
        """

    def check_room(self, num_sequences: int) -> None:
        """Raise what `submit` would raise now for this many sequences, before their prompts are encoded.

        Raises:
            RequestTooLargeError: They can never run here.
            QueueFullError: There is no room for all of them.
            EngineUnavailableError: Shutting down, being restarted, or failed.
        """

    def submit(self, requests: list[SequenceRequest]) -> RequestHandle:
        """Queue the sequences of a request: all of them, or none where it raises.

        Raises:
            UnsupportedFieldError: A field of the request has a value that this engine does not have.
            RequestTooLargeError: They can never run here.
            QueueFullError: There is no room for all of them.
            EngineUnavailableError: Shutting down, being restarted, or failed.
        """

    def stats(self) -> EngineStats:
        """Return the current numbers."""

    def metrics(self) -> Iterable[Metric]:
        """The engine's own metrics besides `stats`."""

    async def drain(self, timeout: float) -> None:
        """Refuse waiting requests, let running ones finish for `timeout` seconds, then fail the rest."""

    def close(self) -> None:
        """Stop for good, also where it was never started; what still runs is dropped."""
