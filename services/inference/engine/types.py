"""What goes into the engine and what comes out: the seam between the HTTP side and the side that runs the model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from services.inference.engine.client.request_handle import Job
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
        arrived_at: When its request came, by `time.perf_counter`, which all processes of a machine share.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    stop_ids: frozenset[int]
    num_logprobs: int | None = None
    min_tokens: int = 0
    num_prompt_logprobs: int | None = None
    arrived_at: float = 0.0


class TokenLogprobs(NamedTuple):
    """Natural log-probabilities under the model's distribution over the valid ids, before any sampling parameter."""

    chosen: float
    top: tuple[tuple[int, float], ...]


class StartEvent(NamedTuple):
    """Row `row` has a place in the batch and its prompt begins to run; comes once, before all others.

    For the engine's client, which measures how long rows wait, those too that were canceled meanwhile; handlers never
    see it.
    """

    row: int
    arrived_at: float


class PromptEvent(NamedTuple):
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


class TokenEvent(NamedTuple):
    """One generated token of row `row`; the row's last event has its finish reason."""

    row: int
    token: int
    logprobs: TokenLogprobs | None = None
    finish_reason: FinishReason | None = None


class FailEvent(NamedTuple):
    """Row `row` could not be finished, for the reason that `message` gives; its last event."""

    row: int
    message: str


CoreEvent: TypeAlias = StartEvent | PromptEvent | TokenEvent | FailEvent
RowEvent: TypeAlias = PromptEvent | TokenEvent
"""What a handler sees of a row."""


class EngineError(Exception):
    """The engine could not finish what it was asked for; the message tells the true cause.

    Attributes:
        code: A stable name for programs.
    """

    code: ClassVar[str] = "generation_failed"


class EngineUnavailableError(EngineError):
    """The engine takes no requests now: it is shutting down, being restarted, or it failed for good."""

    code = "engine_unavailable"


class EngineRestartedError(EngineUnavailableError):
    """The process that ran the model ended; it is being restarted, and the request may be sent again."""

    code = "engine_restarted"


class QueueFullError(EngineError):
    """As many requests are waiting as may wait."""

    code = "queue_full"


class QueueTimeoutError(EngineUnavailableError):
    """The request waited for its place longer than it may."""

    code = "queue_timeout"


class RequestTimeoutError(EngineError):
    """The request ran longer than it may."""

    code = "request_timeout"


class RequestTooLargeError(EngineError):
    """The request can never run here, however long it waits; the message tells the limit."""

    code = "request_too_large"


class EngineStats(NamedTuple):
    """What the engine holds now, and counters since the service started (they survive a restart of the model).

    Attributes:
        waiting_rows: Rows without a place in the batch, preempted ones included.
        running_rows: Rows with one.
        kv_blocks_used: Blocks of the KV cache that rows hold.
        kv_blocks_cached: Blocks that nobody holds and that earlier prompts may be found in.
        kv_blocks_total: All blocks.
        prefix_tokens_looked_up: Prompt tokens that were looked for in the cache.
        prefix_tokens_hit: Those that were found.
        prefill_tokens: Prompt tokens that were computed.
        generated_tokens: Tokens drawn.
        preemptions: How often a row lost its blocks to older ones.
        steps: Steps of the model.
        restarts: How often the model's process was started again.
    """

    waiting_rows: int = 0
    running_rows: int = 0
    kv_blocks_used: int = 0
    kv_blocks_cached: int = 0
    kv_blocks_total: int = 0
    prefix_tokens_looked_up: int = 0
    prefix_tokens_hit: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    restarts: int = 0


class Fault(NamedTuple):
    """Why the engine cannot serve: for now, or for good."""

    reason: str
    final: bool


class Engine(Protocol):
    """Runs rows; all methods are called from the event loop's thread. Those that are not awaited return at once."""

    @property
    def fault(self) -> Fault | None:
        """Why the engine cannot run anything now, or None."""

    async def start(self, on_place: Callable[[float], None]) -> None:
        """Begin; called once, on the event loop. `on_place` learns how many seconds each row waited for its place."""

    def check_room(self, num_rows: int) -> None:
        """Raise what `submit` would raise now for this many rows: a refusal need not wait for its prompt's encoding."""

    def submit(self, requests: list[RowRequest]) -> Job:
        """Queue rows that belong together.

        Raises:
            QueueFullError: There is no room for all of them; none was queued.
            RequestTooLargeError: They can never run here.
            EngineUnavailableError: Shutting down, being restarted, or failed.
        """

    def stats(self) -> EngineStats:
        """Count what is going on."""

    async def drain(self, timeout: float) -> None:
        """Refuse what waits, let running rows finish for `timeout` seconds, then fail the rest."""

    def close(self) -> None:
        """Stop for good; whatever still runs is dropped."""
