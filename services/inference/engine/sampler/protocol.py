"""What a runner needs of a sampler."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from services.inference.engine.types import SampledToken, SequenceRequest, TokenLogprobs

Logits = TypeVar("Logits", contravariant=True)  # noqa: PLC0105 - the name of what it stands for


class Sampler(Protocol[Logits]):
    """The state of all rows that draw, in arrays which are allocated once, and the drawing.

    `Logits` are float32 [rows, vocab_size], as NumPy's or torch's array; a sampler leaves them as they are.
    """

    def open(self, row: int, request: SequenceRequest, output: Sequence[int] = ()) -> None:
        """Start a row; `output` is what it has drawn already."""

    def close(self, row: int) -> None:
        """Forget a row."""

    def draw(self, logits: Logits, rows: Sequence[int]) -> list[SampledToken]:
        """Draw for distinct open rows, one for each row of the logits; the draws count as output from then on.

        A row whose logits hold no distribution (NaN, +inf, nothing finite) gets `NO_TOKEN`, and the others their own.
        """

    def score(self, logits: Logits, targets: Sequence[int], num_logprobs: int) -> list[TokenLogprobs]:
        """Log-probabilities of the targets and of the `num_logprobs` likeliest ids, see `TokenLogprobs`.

        Raises:
            ValueError: One of the rows holds none.
        """
