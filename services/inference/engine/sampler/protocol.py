"""What a runner needs of a sampler."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from services.inference.engine.types import SampledToken, SequenceRequest, TokenLogprobs

Logits = TypeVar("Logits", contravariant=True)  # noqa: PLC0105 - the name of what it stands for


class Sampler(Protocol[Logits]):
    """Samples tokens; holds the state of all slots in arrays that are allocated once.

    `Logits` are float32 [rows, vocab_size], as NumPy's or torch's array; a sampler leaves them as they are.
    """

    def open(self, slot: int, request: SequenceRequest, output: Sequence[int] = ()) -> None:
        """Start a slot; `output` holds the tokens that it has sampled already."""

    def close(self, slot: int) -> None:
        """Free a slot."""

    def sample(self, logits: Logits, slots: Sequence[int]) -> list[SampledToken]:
        """Sample a token for distinct open slots, one for each row of the logits; it counts as output from then on.

        A row whose logits hold no distribution (NaN, +inf, nothing finite) gets `NO_TOKEN`, and the others their own.
        """

    def score(self, logits: Logits, targets: Sequence[int], num_logprobs: int) -> list[TokenLogprobs]:
        """Log-probabilities of the targets and of the `num_logprobs` most likely ids, see `TokenLogprobs`.

        Raises:
            ValueError: One of the rows holds none.
        """
