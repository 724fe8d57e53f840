"""Detects steps whose loss or gradient diverged."""

import math
from collections.abc import Sequence
from statistics import median

_HISTORY = 100
_MIN_LOSSES = 20  # fewer losses give no reliable median
_NORMAL = 1.4826  # ratio of standard deviation to median absolute deviation of a normal distribution
_MIN_DEVIATION = 0.01  # as a share of the median: where losses hardly differ, a small rise is not a spike


def divergence(loss: float, grad_norm: float, recent_losses: Sequence[float], spike_threshold: float) -> str | None:
    """What is wrong with a step; None if it is fault-free.

    A spike is a loss that lies more than `spike_threshold` deviations above the median of the recent ones, the
    deviation being the median absolute one (Iglewicz and Hoaglin 1993, "How to detect and handle outliers", section
    3.3): earlier spikes move neither.

    Args:
        loss: The step's loss.
        grad_norm: Norm of its gradient.
        recent_losses: Losses of earlier fault-free steps.
        spike_threshold: In deviations; 0 detects NaN and infinity only.
    """
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        return f"loss {loss:.4g}, gradient norm {grad_norm:.4g}"
    if not spike_threshold or len(recent_losses) < _MIN_LOSSES:
        return None
    middle = median(recent_losses)
    spread = _NORMAL * median(abs(each - middle) for each in recent_losses)
    deviations = (loss - middle) / max(spread, _MIN_DEVIATION * abs(middle), 1e-12)
    if deviations <= spike_threshold:
        return None
    return (
        f"the loss jumped to {loss:.4g}, {deviations:.0f} deviations above {middle:.4g}, the median of the last "
        f"{len(recent_losses)} steps (--spike-threshold {spike_threshold:g})"
    )


def remember(loss: float, recent_losses: list[float]) -> None:
    """Add the loss of a fault-free step, and drop the oldest one beyond 100."""
    recent_losses.append(loss)
    del recent_losses[:-_HISTORY]
