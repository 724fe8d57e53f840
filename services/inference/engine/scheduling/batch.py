"""What runs in a step."""

from dataclasses import dataclass, field
from typing import NamedTuple

from services.inference.engine.runner.protocol import Segment
from services.inference.engine.scheduling.sequence import Sequence


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


@dataclass(slots=True)
class ScheduledBatch:
    """What the next step does.

    Attributes:
        scheduled: Decoding sequences, then parts of prompts.
        admitted: Sequences that were admitted for the first time.
        failed: Sequences that the runner could not open; they are finished.
    """

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    failed: list[tuple[Sequence, Exception]] = field(default_factory=list)
