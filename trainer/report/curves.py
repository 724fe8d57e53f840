"""Curves as they are drawn: smoothed, and thinned to what the eye can tell apart."""

import numpy as np

from trainer.run_results import Curve, Floats

POINTS = 500
_SMOOTHED_SHARE = 50  # one part in so many of a curve is averaged over


def smooth(curve: Curve) -> Curve:
    """Mean over a window of 2 % of the points around each; NaN where none in it is a number."""
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
    """At most so many of the points, evenly taken, with the first and the last."""
    if len(curve) <= points:
        return curve
    kept = np.unique(np.linspace(0, len(curve) - 1, points).round().astype(int))
    return Curve(curve.steps[kept], curve.values[kept])


def loss_limits(losses: list[tuple[Curve, bool]]) -> tuple[float, float] | None:
    """What an axis of losses must show: not the first steps, and not what runs that blew up rose to.

    Args:
        losses: Smoothed, and whether the run diverged.
    """
    sane = [curve for curve, diverged in losses if not diverged and np.isfinite(curve.values).any()]
    sane = sane or [curve for curve, _ in losses if np.isfinite(curve.values).any()]
    if not sane:
        return None
    low = min(float(np.nanmin(curve.values)) for curve in sane)
    high = min(max(_early(curve) for curve in sane), 1.05 * max(_first(curve) for curve in sane))
    room = 0.04 * (high - low) or 0.1
    return low - room, high + room


def _early(curve: Curve) -> float:
    """The highest value after a twentieth of the steps."""
    late: Floats = curve.values[curve.steps >= curve.steps[-1] / 20]
    return float(np.nanmax(late)) if np.isfinite(late).any() else _first(curve)


def _first(curve: Curve) -> float:
    return float(curve.values[np.isfinite(curve.values)][0])
