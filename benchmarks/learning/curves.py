"""What a run measures: validation loss against tokens and seconds of training."""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class Point(NamedTuple):
    """One evaluation.

    Attributes:
        tokens: Trained before it.
        seconds: Wall-clock of training before it; evaluations are not counted.
        loss: Nats a validation token.
        bits_per_byte: Of the validation text.
    """

    tokens: int
    seconds: float
    loss: float
    bits_per_byte: float


@dataclass(frozen=True)
class Curve:
    """A run.

    Attributes:
        name: The contestant.
        parameters: Weights of its model.
        points: In order; the last is the end of the run.
    """

    name: str
    parameters: int
    points: list[Point]

    @property
    def end(self) -> Point:
        """The end of the run."""
        return self.points[-1]

    def seconds_to(self, bits_per_byte: float) -> float | None:
        """When the curve first was this low, on straight lines between its points; None if it never was."""
        if self.points[0].bits_per_byte <= bits_per_byte:
            return self.points[0].seconds
        for before, after in pairwise(self.points):
            if after.bits_per_byte <= bits_per_byte:
                share = (before.bits_per_byte - bits_per_byte) / (before.bits_per_byte - after.bits_per_byte)
                return before.seconds + share * (after.seconds - before.seconds)
        return None
