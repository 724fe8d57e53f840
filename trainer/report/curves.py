"""Curves as they are drawn: smoothed, and thinned to a few hundred points."""

from collections.abc import Sequence

import numpy as np

from trainer.runs.results import Curve

POINTS = 500
_SMOOTHED_SHARE = 50  # a window is this fraction of the curve


def smooth(curve: Curve) -> Curve:
    """Mean over a window of 2 % of the points around each; NaN where no value in it is finite."""
    width = max(1, len(curve) // _SMOOTHED_SHARE)
    if width == 1:
        return curve
    finite = np.isfinite(curve.values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, curve.values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    places = np.arange(len(curve))
    first, last = np.maximum(places - width // 2, 0), np.minimum(places + width // 2 + 1, len(curve))
    with np.errstate(invalid="ignore"):
        return Curve(curve.steps, (sums[last] - sums[first]) / (counts[last] - counts[first]))


def thin(curve: Curve, points: int = POINTS) -> Curve:
    """At most `points` evenly spaced points, the first and the last included."""
    if len(curve) <= points:
        return curve
    kept = np.unique(np.linspace(0, len(curve) - 1, points).round().astype(int))
    return Curve(curve.steps[kept], curve.values[kept])


def loss_limits(curves: Sequence[Curve], first_losses: Sequence[float]) -> tuple[float, float] | None:
    """The range of a loss axis: without the first steps, and without the peaks of diverged runs.

    Args:
        curves: Smoothed; of runs that did not diverge, unless all did.
        first_losses: Of the runs' first steps, which no sensible curve exceeds.
    """
    finite = [curve for curve in curves if np.isfinite(curve.values).any()]
    if not finite:
        return None
    low = min(float(np.nanmin(curve.values)) for curve in finite)
    high = max(_highest_later(curve) for curve in finite)
    if first_losses:
        high = max(min(high, max(first_losses)), low)
    room = 0.04 * (high - low) or 0.1
    return low - room, high + room


def _highest_later(curve: Curve) -> float:
    """The highest value after a twentieth of the steps."""
    late = curve.values[curve.steps >= curve.steps[-1] / 20]
    return float(np.nanmax(late if np.isfinite(late).any() else curve.values))
