"""A runner whose tokens are a pure function of the sequence, as far as the blocks and its own notes tell it."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.inference.engine.runner.protocol import BlockMemory, Segment, StepResult
from services.inference.engine.types import BLOCK_SIZE, SampledToken, SequenceRequest, TokenLogprobs

UNWRITTEN = -7


def next_token(sequence: Sequence[int], seed: int, step: int) -> int:
    """Of 50 tokens; 0 to 2 are likely to be stop ids in tests."""
    return zlib.crc32(repr((list(sequence), seed, step)).encode()) % 50


def score(sequence: Sequence[int], target: int, num_logprobs: int) -> TokenLogprobs:
    return TokenLogprobs(-float(zlib.crc32(repr((list(sequence), target)).encode())), ((target, 0.0),) * num_logprobs)


def reference(request: SequenceRequest) -> list[int]:
    """What a sequence gives where it is alone, one token after the other."""
    tokens = list(request.prompt_ids)
    output: list[int] = []
    while len(output) < request.max_tokens and not (output and output[-1] in request.stop_ids):
        output.append(next_token(tokens, request.params.seed, len(output)))
        tokens.append(output[-1])
    return output


@dataclass
class FakeMemory:
    """Blocks that are taken when a test says so.

    Attributes:
        num_ready: Blocks that may be used.
        limit: More than these are refused.
        wanted: As many are being taken.
    """

    num_ready: int
    limit: int
    wanted: int = 0

    @property
    def is_growing(self) -> bool:
        return self.num_ready < self.wanted

    def reserve(self, count: int, *, wait: bool = False) -> None:
        if wait:
            self.num_ready = max(self.num_ready, min(count, self.limit))
        self.wanted = min(max(self.wanted, count + 2), self.limit)

    def grow(self, count: int) -> None:
        self.num_ready = max(self.num_ready, min(self.num_ready + count, self.wanted, self.limit))

    def num_kept(self, count: int) -> int:
        return count + 2

    def give_back(self, count: int) -> None:
        if not self.is_growing:
            self.num_ready = self.wanted = count


@dataclass
class FakeRunner:
    """Keeps the tokens themselves in the blocks: one that is shared, copied or reused wrongly changes what is sampled.

    Attributes:
        fault_if_several: The next step of several segments raises.
        most_segments: A step of more segments raises.
        faults: Raised by the next steps, one each; None for a step that runs.
        poison: A step that holds this token raises; without a distribution where it is `blind`.
        steps: Numbers of tokens of each segment, step by step.
    """

    num_blocks: int = 40
    block_memory: BlockMemory | None = None
    num_slots: int = 4
    max_step_tokens: int = 36
    faults: list[Exception | None] = field(default_factory=list)
    fault_if_several: bool = False
    most_segments: int | None = None
    open_faults: list[Exception | None] = field(default_factory=list)
    copy_faults: list[Exception] = field(default_factory=list)
    poison: int | None = None
    blind: int | None = None
    steps: list[list[int]] = field(default_factory=list)
    slots: dict[int, tuple[SequenceRequest, list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.blocks = [[UNWRITTEN] * BLOCK_SIZE for _ in range(self.num_blocks)]

    def open_slot(self, slot: int, request: SequenceRequest, output: Sequence[int] = ()) -> None:
        if self.open_faults and (fault := self.open_faults.pop(0)) is not None:
            raise fault
        assert 0 <= slot < self.num_slots
        assert slot not in self.slots
        self.slots[slot] = request, list(output)

    def close_slot(self, slot: int) -> None:
        del self.slots[slot]

    def copy_block(self, source: int, target: int) -> None:
        if self.copy_faults:
            raise self.copy_faults.pop(0)
        self.blocks[target] = list(self.blocks[source])

    def run(self, segments: Sequence[Segment]) -> StepResult:
        self.steps.append([len(segment.tokens) for segment in segments])
        assert 0 < sum(self.steps[-1]) <= self.max_step_tokens
        self._write(segments)
        result = StepResult()
        for segment in segments:
            sequence = self._read(segment)
            if self.poison in sequence:
                raise ValueError(f"token {self.poison}")
            result.sampled_tokens.extend(self._sample(slot, sequence) for slot in segment.sample_slots)
            result.prompt_logprobs.append(
                [
                    score(sequence[: segment.start + index + 1], target, segment.num_logprobs)
                    for index, target in enumerate(segment.targets)
                ]
            )
        if self.most_segments is not None and len(segments) > self.most_segments:
            raise MemoryError(f"{len(segments)} segments")
        if self.fault_if_several and len(segments) > 1:
            self.fault_if_several = False
            raise MemoryError
        if self.faults and (fault := self.faults.pop(0)) is not None:
            raise fault  # as late as can be: tokens were sampled, blocks are written
        return result

    def _write(self, segments: Sequence[Segment]) -> None:
        written: set[tuple[int, int]] = set()
        for segment in segments:
            for position, token in enumerate(segment.tokens, segment.start):
                at = segment.blocks[position // BLOCK_SIZE], position % BLOCK_SIZE
                assert self.block_memory is None or at[0] < self.block_memory.num_ready
                assert at not in written, "two segments of a step write to one place"
                written.add(at)
                self.blocks[at[0]][at[1]] = token

    def _read(self, segment: Segment) -> list[int]:
        end = segment.start + len(segment.tokens)
        return [self.blocks[segment.blocks[at // BLOCK_SIZE]][at % BLOCK_SIZE] for at in range(end)]

    def _sample(self, slot: int, sequence: list[int]) -> SampledToken:
        request, output = self.slots[slot]
        if self.blind in sequence:
            return SampledToken(slot, -1)
        token = next_token(sequence, request.params.seed, len(output))
        output.append(token)
        return SampledToken(slot, token)
