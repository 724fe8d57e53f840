"""Loss by position: in the window, and in the document."""

from dataclasses import dataclass

import numpy as np

from trainer.runs.results import Curve, Floats


@dataclass(frozen=True)
class PositionLoss:
    """Mean nats per token by position, from 1, in bins of growing size.

    Attributes:
        window: Consecutive windows, across document boundaries.
        document: Each document alone from its first token, up to the context length.
    """

    window: Curve
    document: Curve


def binned(sums: Floats, counts: Floats) -> Curve:
    """Means in bins of positions, each about a quarter longer than the one before; bins without tokens are left out.

    Args:
        sums: [positions] nats.
        counts: [positions] tokens.
    """
    edges = [0]
    while edges[-1] < len(sums):
        edges.append(max(edges[-1] + 1, int(edges[-1] * 1.25)))
    starts = np.array(edges[:-1], dtype=int)
    if not len(starts):
        return Curve(np.empty(0), np.empty(0))
    total, number = np.add.reduceat(sums, starts), np.add.reduceat(counts, starts)
    middle = np.add.reduceat(counts * np.arange(1, len(sums) + 1), starts)
    has = number > 0
    return Curve(middle[has] / number[has], total[has] / number[has])
