"""One step of the model: the interface between the scheduler, which decides what runs, and a runner, which runs it.

The scheduler knows sequences and blocks; a runner knows weights, kernels and devices. A *slot* is where a runner keeps
what it needs of a sequence to sample its tokens. All of it is plain data, so that each side can be tested alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.inference.engine.types import SampledToken, SequenceRequest, TokenLogprobs


@dataclass(slots=True)
class Segment:
    """Consecutive new tokens of one sequence in a step: a part of a prompt, or one generated token.

    Attributes:
        tokens: The ids, at least one.
        start: The position of the first of them; everything before it is in the blocks already.
        blocks: The sequence's blocks in the order of positions. Block i holds positions `i * BLOCK_SIZE` on; there is
            one for every position up to the last of `tokens`. Blocks before `start // BLOCK_SIZE` may be shared with
            other sequences and are only read.
        sample_slots: The slots for which a token is sampled from the logits after the last of `tokens`; none within a
            prompt, several where choices share a prompt.
        targets: Where log-probabilities of a prompt are requested, the id that follows each of `tokens` (one fewer
            where the prompt ends with them); else empty.
        num_logprobs: How many of the most likely ids to report beside each target.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    sample_slots: tuple[int, ...] = ()
    targets: Sequence[int] = ()
    num_logprobs: int = 0


@dataclass(slots=True)
class StepResult:
    """The result of a step.

    Attributes:
        sampled_tokens: In the order of the segments and of their `sample_slots`.
        prompt_logprobs: For each segment, one for each of its `targets`.
    """

    sampled_tokens: list[SampledToken] = field(default_factory=list)
    prompt_logprobs: list[list[TokenLogprobs]] = field(default_factory=list)


class BlockMemory(Protocol):
    """The memory of the KV cache, where it is not taken all at once. Blocks are taken in their order.

    Attributes:
        num_ready: Blocks that have been taken: those of numbers below may be used. Never fewer than a sequence of full
            length needs.
    """

    num_ready: int

    @property
    def is_growing(self) -> bool:
        """Whether more blocks are being taken."""

    def reserve(self, count: int, *, wait: bool = False) -> None:
        """Take the first `count` blocks, and in the background some more, as far as there is memory.

        Args:
            count: Up to the runner's `num_blocks`.
            wait: Return once they have been taken or refused.
        """

    def num_kept(self, count: int) -> int:
        """How many blocks `give_back` leaves where only the first `count` are needed."""

    def give_back(self, count: int) -> None:
        """Return the memory of all but the first `count` blocks, at least `num_kept(0)`, unless more is being taken."""


class RunnerLostError(RuntimeError):
    """The runner cannot run anything any more, as after a fault of its device; only a new process can."""


class Runner(Protocol):
    """Runs steps. What a sequence gets depends on its own tokens, parameters and seed, and on nothing else in a step.

    Any method may raise `RunnerLostError`; every other exception may be the fault of the sequences that were run.

    Attributes:
        num_blocks: The most blocks of the KV cache.
        num_slots: Sequences that may run at the same time.
        max_step_tokens: The most tokens of all segments of a step.
    """

    num_blocks: int
    num_slots: int
    max_step_tokens: int

    @property
    def block_memory(self) -> BlockMemory | None:
        """The memory of the blocks; None where all of it is there."""

    def open_slot(self, slot: int, request: SequenceRequest, output: Sequence[int] = ()) -> None:
        """Prepare to sample for a sequence; `output` is what it has generated already, if it was preempted."""

    def close_slot(self, slot: int) -> None:
        """Forget the slot's sequence."""

    def copy_block(self, source: int, target: int) -> None:
        """Copy a block of all layers, for sequences that diverge in the middle of one."""

    def run(self, segments: Sequence[Segment]) -> StepResult:
        """Run one step. A slot's sampled token counts as its output from then on."""
