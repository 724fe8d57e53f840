"""One step of the model: the seam between the scheduler, which decides what runs, and a runner, which runs it.

The scheduler knows sequences, blocks and rows; a runner knows weights, kernels and devices. Everything here is plain
data, so that either side is tested without the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from services.inference.engine.types import RowRequest, TokenLogprobs

BLOCK_SIZE = 16
"""Tokens of one block of the KV cache."""

NO_DISTRIBUTION = "the model gave no distribution to draw from: its logits are not finite"
"""What a row is told that fails for this reason."""


@dataclass(slots=True)
class Segment:
    """Consecutive new tokens of one sequence in a step: a part of a prompt, or one generated token.

    Attributes:
        tokens: The ids, at least one.
        start: The position of the first of them; everything before it is in the blocks already.
        blocks: The sequence's blocks in the order of positions. Block i holds positions `i * BLOCK_SIZE` on; there is
            one for every position up to the last of `tokens`. Blocks before `start // BLOCK_SIZE` may be shared with
            other sequences and are only read.
        draws: The rows that draw a token from the logits after the last of `tokens`; none within a prompt. Several
            where choices share a prompt.
        targets: Where log-probabilities of a prompt are wanted, the id that follows each of `tokens` (one fewer where
            the prompt ends with them); else empty.
        num_logprobs: How many of the likeliest ids to report beside each target.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    draws: tuple[int, ...] = ()
    targets: Sequence[int] = ()
    num_logprobs: int = 0


class Draw(NamedTuple):
    """What a row drew. `token` is `NO_TOKEN` where its logits hold no distribution to draw from."""

    row: int
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True)
class StepResult:
    """What a step gave.

    Attributes:
        draws: In the order of the segments and of their `draws`.
        prompt_logprobs: For each segment, one for each of its `targets`.
    """

    draws: list[Draw] = field(default_factory=list)
    prompt_logprobs: list[list[TokenLogprobs]] = field(default_factory=list)


def check_result(segments: Sequence[Segment], result: StepResult) -> None:
    """Raise where a runner did not give what was asked for, before any of it is taken over."""
    places = [place for segment in segments for place in segment.draws]
    if [draw.row for draw in result.draws] != places:
        raise RuntimeError(f"the runner drew for rows {[draw.row for draw in result.draws]} instead of {places}")
    scored = [len(scores) for scores in result.prompt_logprobs] or [0] * len(segments)
    if scored != [len(segment.targets) for segment in segments]:
        raise RuntimeError("the runner scored other tokens of prompts than it was asked to")


class RunnerLostError(RuntimeError):
    """The runner runs nothing any more, as after a fault of its device: only another process does."""


class Runner(Protocol):
    """Runs steps. What a sequence gets depends on its own tokens, parameters and seed, and on nothing else in a step.

    Any method may raise `RunnerLostError`; every other exception may be the fault of what was asked for.

    Attributes:
        num_blocks: Blocks of the KV cache, which is allocated once.
        max_rows: Rows that may be open at the same time, numbered from 0.
        max_step_tokens: The most tokens of all segments of a step.
    """

    num_blocks: int
    max_rows: int
    max_step_tokens: int

    def open_row(self, row: int, request: RowRequest, output: Sequence[int] = ()) -> None:
        """Start drawing for a request in place `row`; `output` is what it has generated already, if it was evicted."""

    def close_row(self, row: int) -> None:
        """Forget the row."""

    def copy_block(self, source: int, target: int) -> None:
        """Copy a block of all layers, for sequences that go separate ways in the middle of one."""

    def run(self, segments: Sequence[Segment]) -> StepResult:
        """Run one step. A row's draw counts as its output from then on."""
