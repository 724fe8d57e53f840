"""Curves as the page gets them: the first thousand points as they are, the others averaged in equal groups."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.runs.metrics_table import Column, Curve, Floats

FIRST = 1_000
"""Points that stay as they are, so that the begin of a long run is seen on a logarithmic axis."""
MOST_GROUPS = 2_000

SHOWN = (
    "loss",
    "validation_loss",
    "bits_per_byte",
    "learning_rate",
    "grad_norm",
    "tokens_per_second",
    "tokens",
    "seconds",
)
"""The keys of `metrics.jsonl` that the page has."""


@dataclass(frozen=True)
class Sent:
    """What the page has of a column.

    Attributes:
        values: How many of its values.
        group: How many of them are one point, after the first thousand.
    """

    values: int = 0
    group: int = 1


def points_of(curve: Curve) -> dict[str, Any]:
    """All points of a curve, as the page takes them."""
    return _points(curve, 0, _group_size(len(curve)))


def new_points(column: Column, sent: Sent) -> tuple[dict[str, Any] | None, Sent]:
    """What the page lacks of a column.

    Returns:
        The number of points that it keeps (`from`), and those after them, None where it has all; and what it has then.
    """
    count = len(column)
    group = _group_size(count)
    unchanged = min(sent.values, column.num_unchanged)
    if unchanged == count == sent.values:
        return None, sent
    if not column.is_increasing:
        return points_of(column.curve()), Sent(count, group)
    if unchanged > FIRST and group == sent.group:
        start = FIRST + (unchanged - FIRST) // group * group
    else:
        start = min(unchanged, FIRST)
    return _points(column.curve(start), start, group), Sent(count, group)


def _group_size(count: int) -> int:
    """A power of two, so that groups of a growing curve seldom change."""
    size = 1
    while count - FIRST > size * MOST_GROUPS:
        size *= 2
    return size


def _points(curve: Curve, start: int, group: int) -> dict[str, Any]:
    """The points of the values from `start` on, which is one of the first thousand or begins a group."""
    plain = max(0, FIRST - start)
    kept = start if start <= FIRST else FIRST + (start - FIRST) // group
    return {"from": kept, "steps": _grouped(curve.steps, plain, group), "values": _grouped(curve.values, plain, group)}


def _grouped(values: Floats, plain: int, group: int) -> list[float | None]:
    """Means of the finite ones of each group; of none, no number."""
    rest = values[plain:]
    if group > 1 and len(rest):
        finite, starts = np.isfinite(rest), np.arange(0, len(rest), group)
        with np.errstate(invalid="ignore"):
            rest = np.add.reduceat(np.where(finite, rest, 0.0), starts) / np.add.reduceat(finite, starts, dtype=float)
    return [_number(value) for value in np.concatenate([values[:plain], rest]).tolist()]


def _number(value: float) -> float | None:
    """Whole numbers, and others with the digits that a float32 has: more are never seen."""
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else float(f"{value:.7g}")
