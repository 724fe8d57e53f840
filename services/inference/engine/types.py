"""What goes into the engine and what comes out, and its limits: plain data that both processes use."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

from services.inference.engine.errors import RequestTooLargeError
from shared.lm import SamplingParams

BLOCK_SIZE = 16
"""Tokens of one block of the KV cache."""

MAX_LOGPROBS = 20
"""The most alternatives that a request may ask for at each token."""

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence to generate. A request of n choices is n of them, numbered from 0: their *sequence index*.

    Attributes:
        prompt_ids: The tokens that are read before the first one is generated; at least one.
        params: Sampling parameters. The seed is set, so that the sequence does not depend on what else runs.
        max_tokens: Tokens to generate. Prompt and output together fit in the engine's `context_length`. 0 only where
            `num_prompt_logprobs` is set: the sequence ends with its `PromptEvent`.
        stop_ids: Tokens that end the sequence; the stop token itself is its last event.
        num_logprobs: How many alternatives to report for each token; None reports no log-probabilities.
        min_tokens: Tokens before which no id of `stop_ids` is sampled.
        num_prompt_logprobs: How many alternatives to report for each token of the prompt except the first; None reports
            no log-probabilities of the prompt.
        arrived_at: When its request came, by `time.perf_counter`, which all processes of a machine share.
        num_given: The last so many of `prompt_ids` begin the output: they count as output for the penalties, for
            `min_tokens` and for the random numbers, so that the rest is the same as if they had been generated.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    stop_ids: frozenset[int]
    num_logprobs: int | None = None
    min_tokens: int = 0
    num_prompt_logprobs: int | None = None
    arrived_at: float = 0.0
    num_given: int = 0

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds at its end: its last token is never run, so its keys and values need no room."""
        num_prompt_tokens = len(self.prompt_ids)
        return num_blocks_of(max(num_prompt_tokens, num_prompt_tokens + self.max_tokens - 1))

    def check_fits_cache(self, num_blocks: int) -> None:
        """Refuse a sequence that needs more than the `num_blocks` blocks of the KV cache.

        Raises:
            RequestTooLargeError: Names the limit.
        """
        needed = self.num_blocks
        if needed > num_blocks:
            raise RequestTooLargeError(
                f"{len(self.prompt_ids)} prompt tokens and max_tokens {self.max_tokens} need {needed * BLOCK_SIZE} "
                f"tokens of KV cache, and it holds {num_blocks * BLOCK_SIZE}; shorten the prompt, lower max_tokens, or "
                "raise OWNLM_KV_CACHE_BYTES"
            )


def num_blocks_of(num_tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-num_tokens // BLOCK_SIZE)


class TokenLogprobs(NamedTuple):
    """Natural log-probabilities under the model's distribution over the valid ids, before any sampling parameter."""

    chosen: float
    top: tuple[tuple[int, float], ...]


class SampledToken(NamedTuple):
    """The token that was sampled for a slot of the batch; `NO_TOKEN` where its logits hold no distribution."""

    slot: int
    token: int
    logprobs: TokenLogprobs | None = None


class StartEvent(NamedTuple):
    """A sequence was admitted to the batch and its prompt begins to run; comes once, before all others.

    For the engine's client, which measures how long sequences wait, including those that were canceled meanwhile;
    request handlers never see it.
    """

    request_id: int
    sequence_index: int
    arrived_at: float


class PromptEvent(NamedTuple):
    """The prompt of a sequence is in the KV cache; comes once, before the sequence's first token.

    Attributes:
        request_id: The engine's number of the request.
        sequence_index: The sequence's number in its request.
        num_cached_tokens: Prompt tokens that were in the prefix cache, or that another sequence of the same prompt
            computed.
        logprobs: Of every prompt token except the first, if requested.
        finish_reason: "length" where no token was requested.
    """

    request_id: int
    sequence_index: int
    num_cached_tokens: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None


class TokenEvent(NamedTuple):
    """One generated token of a sequence, whose last event has its finish reason."""

    request_id: int
    sequence_index: int
    token: int
    logprobs: TokenLogprobs | None = None
    finish_reason: FinishReason | None = None


class FailEvent(NamedTuple):
    """A sequence failed; its last event. `message` is the cause."""

    request_id: int
    sequence_index: int
    message: str


CoreEvent: TypeAlias = StartEvent | PromptEvent | TokenEvent | FailEvent
SequenceEvent: TypeAlias = PromptEvent | TokenEvent
"""What a request handler sees of a sequence."""


class EngineStats(NamedTuple):
    """What the engine holds now, and counters since the service started (they survive a restart of the worker).

    Attributes:
        num_waiting: Sequences that are not in the batch, preempted ones included.
        num_running: Sequences in the batch.
        kv_blocks_used: Blocks of the KV cache that sequences hold.
        kv_blocks_cached: Unused blocks whose content may still be a prefix cache hit.
        kv_blocks_total: The most blocks that there may be.
        kv_blocks_allocated: Blocks that memory has been taken for.
        prefix_tokens_looked_up: Prompt tokens that were looked up in the prefix cache.
        prefix_tokens_hit: Those that were cache hits.
        prefill_tokens: Prompt tokens that were computed.
        generated_tokens: Tokens sampled.
        preemptions: How often a sequence lost its blocks to older ones.
        steps: Steps of the model.
        restarts: How often the engine process was restarted.
    """

    num_waiting: int = 0
    num_running: int = 0
    kv_blocks_used: int = 0
    kv_blocks_cached: int = 0
    kv_blocks_total: int = 0
    kv_blocks_allocated: int = 0
    prefix_tokens_looked_up: int = 0
    prefix_tokens_hit: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    restarts: int = 0

    def after(self, earlier: "EngineStats") -> "EngineStats":
        """Add the counters of processes that ran before this one."""
        return self._replace(**{name: getattr(self, name) + getattr(earlier, name) for name in _COUNTERS})


_COUNTERS = (
    "prefix_tokens_looked_up",
    "prefix_tokens_hit",
    "prefill_tokens",
    "generated_tokens",
    "preemptions",
    "steps",
)


class EngineFeatures(NamedTuple):
    """The engine that runs the model, and where it differs from the API.

    Attributes:
        name: "ownlm" or "vllm".
        version: Of the engine.
        bitwise_isolation: Whether a sequence is the same to the bit alone and beside any others.
        refused: Fields of a request that are refused, always or for some values, and why.
        differences: Other differences from the API, a sentence each.
    """

    name: str = "ownlm"
    version: str | None = None
    bitwise_isolation: bool = False
    refused: Mapping[str, str] = MappingProxyType({})
    differences: tuple[str, ...] = ()


class Fault(NamedTuple):
    """Why the engine cannot serve; `final` if it will not recover."""

    reason: str
    final: bool
