"""One sequence inside the engine's core, and its part of a step."""

import collections.abc
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from services.inference.engine.runner.protocol import Segment
from services.inference.engine.scheduling.block_pool import NO_PARENT, chain_digest
from services.inference.engine.types import BLOCK_SIZE, FinishReason, SequenceRequest, TokenLogprobs

PrefillKey = tuple[tuple[int, ...], int | None]
"""A prompt, and how many log-probabilities of it are requested."""


class SequenceId(NamedTuple):
    """A request, and the sequence's number in it."""

    request_id: int
    sequence_index: int


class Status(Enum):
    """Where a sequence is: its only liveness state. A preempted sequence is waiting again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence and its progress.

    Attributes:
        id: Its request and its number in it.
        request: What to generate.
        status: Waiting, running or finished.
        admission: Its number in the order of first admission, kept when it is preempted; -1 before it.
        slot: Where the runner keeps it; -1 if it does not.
        output: The tokens generated so far.
        blocks: Its blocks, in the order of positions. A follower's are those that it will not share with its leader.
        num_computed: Tokens whose keys and values are in the blocks.
        num_cached: Prompt tokens that were cache hits.
        digests: The digests of its full blocks from the first on, computed as they are needed.
        prompt_logprobs: Of the prompt's tokens that have been computed, if requested.
        prompt_reported: Whether its `PromptEvent` was emitted.
        leader: The sequence whose prefill it shares.
        followers: The sequences that share its prefill: their first tokens are sampled from the same logits.
        next_full_prefill_at: The number of tokens from which a step with a full prefill budget may delay it again.
    """

    id: SequenceId
    request: SequenceRequest
    status: Status = Status.WAITING
    admission: int = -1
    slot: int = -1
    output: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int = 0
    digests: list[bytes] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_reported: bool = False
    leader: "Sequence | None" = None
    followers: list["Sequence"] = field(default_factory=list)
    next_full_prefill_at: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output."""
        return len(self.request.prompt_ids) + len(self.output)

    @property
    def num_left(self) -> int:
        """Tokens that are still to be computed."""
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether only the newest generated token is left to compute."""
        return bool(self.output) and self.num_computed == self.num_tokens - 1

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of the prompt are still to be reported: it is computed then, cache hit or not."""
        return self.request.num_prompt_logprobs is not None and not self.prompt_reported

    def tokens(self, start: int, end: int) -> collections.abc.Sequence[int]:
        """Prompt and output from `start` to `end`."""
        prompt = self.request.prompt_ids
        if end <= len(prompt):
            return prompt[start:end]
        generated = self.output[max(0, start - len(prompt)) : end - len(prompt)]
        return [*prompt[start:], *generated]

    @property
    def num_cacheable_blocks(self) -> int:
        """Blocks that may be cache hits: the last token is always computed, since its logits are needed."""
        return (self.num_tokens - 1) // BLOCK_SIZE

    def digest(self, index: int) -> bytes:
        """The digest of full block `index`."""
        while len(self.digests) <= index:
            start = len(self.digests) * BLOCK_SIZE
            parent = self.digests[-1] if self.digests else NO_PARENT
            self.digests.append(chain_digest(parent, self.tokens(start, start + BLOCK_SIZE)))
        return self.digests[index]

    @property
    def prefill_key(self) -> PrefillKey:
        """Equal for sequences that can share a prefill to its end."""
        return self.request.prompt_ids, self.request.num_prompt_logprobs

    def append(self, token: int) -> FinishReason | None:
        """Add a generated token; return why the sequence ends with it, or None."""
        self.output.append(token)
        if token in self.request.stop_ids:
            return "stop"
        return "length" if len(self.output) >= self.request.max_tokens else None


class ScheduledSequence(NamedTuple):
    """Tokens `start` to `end` of a sequence run in this step."""

    sequence: Sequence
    start: int
    end: int

    @property
    def sampled_sequences(self) -> list[Sequence]:
        """The sequences for which a token is sampled from the logits after the last token."""
        if self.end < self.sequence.num_tokens:
            return []
        return [member for member in (self.sequence, *self.sequence.followers) if member.request.max_tokens]

    def segment(self) -> Segment:
        """As the runner takes it."""
        sequence, start, end = self
        if sequence.is_decoding:
            return Segment((sequence.output[-1],), start, sequence.blocks, (sequence.slot,))
        slots = tuple(sampled.slot for sampled in self.sampled_sequences)
        tokens = sequence.tokens(start, end)
        if not sequence.needs_prompt_logprobs:
            return Segment(tokens, start, sequence.blocks, slots)
        request = sequence.request
        targets = request.prompt_ids[start + 1 : end + 1]
        return Segment(tokens, start, sequence.blocks, slots, targets, request.num_prompt_logprobs or 0)
