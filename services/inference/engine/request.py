"""What goes into the engine and what comes out: the seam between the HTTP side and the side that runs the model."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from services.inference.engine.job import Job
from shared.lm import SamplingParams

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class RowRequest:
    """One sequence to continue.

    Attributes:
        prompt_ids: At least one token.
        params: Sampling parameters; the seed is set, so that the row does not depend on its neighbours.
        max_tokens: Prompt and answer together fit in the engine's `max_length`. 0 only where `num_prompt_logprobs` is
            set: the row ends with its `PromptEvent`.
        stop_ids: Tokens that end the row; the one that did is its last event.
        num_logprobs: How many alternatives to report for each token; None reports no log-probabilities.
        min_tokens: Tokens before which no id of `stop_ids` is drawn.
        num_prompt_logprobs: How many alternatives to report for each token of the prompt but the first; None reports
            no log-probabilities of the prompt.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    stop_ids: frozenset[int]
    num_logprobs: int | None = None
    min_tokens: int = 0
    num_prompt_logprobs: int | None = None


class TokenLogprobs(NamedTuple):
    """Natural log-probabilities under the model's own distribution, before any sampling parameter."""

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class PromptEvent:
    """The prompt of row `row` is in the cache; comes once, before the row's first token.

    Attributes:
        row: The row's number in its job.
        num_cached_tokens: Prompt tokens that earlier requests, or other rows of this one, had computed.
        logprobs: Of every prompt token but the first, where they were asked for.
        finish_reason: "length" where no token was wanted.
    """

    row: int
    num_cached_tokens: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token of row `row`; the row's last event has its finish reason."""

    row: int
    token: int
    logprobs: TokenLogprobs | None = None
    finish_reason: FinishReason | None = None


class EngineError(Exception):
    """The engine could not finish what it was asked for; the message tells the true cause."""


class EngineUnavailableError(EngineError):
    """The engine takes no requests: it is shutting down, or it failed for good."""


class QueueFullError(EngineError):
    """As many requests are waiting as may wait."""


class EngineStats(NamedTuple):
    """What the engine holds now."""

    waiting_rows: int
    running_rows: int


class Engine(Protocol):
    """Runs rows; all methods are called from the event loop's thread and return at once, but for `drain`."""

    @property
    def fault(self) -> str | None:
        """Why the engine can no longer run anything, or None."""

    def check_room(self, num_rows: int) -> None:
        """Raise what `submit` would raise now for this many rows: a refusal need not wait for its prompt's encoding."""

    def submit(self, requests: list[RowRequest]) -> Job:
        """Queue rows that belong together.

        Raises:
            QueueFullError: There is no room for all of them; none was queued.
            EngineUnavailableError: Shutting down, or failed.
        """

    def stats(self) -> EngineStats:
        """Count what is going on."""

    async def drain(self, timeout: float) -> None:
        """Refuse what waits, let running rows finish for `timeout` seconds, then fail the rest."""

    def close(self) -> None:
        """Stop for good; whatever still runs is dropped."""
