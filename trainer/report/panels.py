"""What each figure of a report shows: curves and points of all runs on one pair of axes.

Each `draw_` function returns whether there was anything to draw.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import EngFormatter

from trainer.report.curves import loss_limits, smooth, thin
from trainer.runs.results import Curve, Floats, RunResults

LONGEST_TEXT = 50
"""Characters of a name in a figure."""

XAxis = Literal["step", "time", "tokens"]

_TRAINING: Any = {"linewidth": 0.9, "alpha": 0.75}
_VALIDATION: Any = {"marker": ".", "markersize": 5}
_BASELINE: Any = {"linewidth": 2.8, "zorder": 3}


def figure_text(text: str) -> str:
    """The text on one line, in printable characters, and at most LONGEST_TEXT of them."""
    shown = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return shown if len(shown) <= LONGEST_TEXT else f"{shown[: LONGEST_TEXT - 1]}…"


def line_style(run: RunResults) -> dict[str, Any]:
    """How a run's curves are drawn: a baseline's are thicker, and above the others."""
    return _BASELINE if run.baseline else {}


def _x(run: RunResults, curve: Curve, axis: XAxis, unit: float) -> Floats:
    if axis == "step":
        return curve.steps
    return run.at("seconds" if axis == "time" else "tokens", curve.steps) / unit


def _time_unit(runs: Sequence[RunResults]) -> tuple[float, str]:
    longest = max((run.final("seconds") or 0.0 for run in runs), default=0.0)
    units = ((3600.0, "hours"), (60.0, "minutes"))
    return next((unit for unit in units if longest >= 2 * unit[0]), (1.0, "seconds"))


def draw_losses(axes: Axes, runs: Sequence[RunResults], colors: Sequence[str], axis: XAxis) -> bool:
    """Training and validation losses of all runs, and where the divergence guard acted."""
    unit, label = _time_unit(runs) if axis == "time" else (1.0, axis)
    drawn = False
    for run, color in zip(runs, colors, strict=True):
        train, validation = thin(smooth(run.curve("loss"))), thin(run.curve("validation_loss"))
        for curve, style in ((train, _TRAINING), (validation, _VALIDATION | line_style(run))):
            x = _x(run, curve, axis, unit)
            if np.isfinite(x).any():
                axes.plot(x, curve.values, color=color, **style)
                drawn = True
        marks = _event_marks(run, train)
        axes.plot(_x(run, marks, axis, unit), marks.values, "x", color=color, markersize=8, markeredgewidth=2)
    stable = _without_diverged(runs)
    losses = [smooth(run.curve(key)) for run in stable for key in ("loss", "validation_loss")]
    first = [float(run.curve("loss").values[0]) for run in stable if len(run.curve("loss"))]
    limits = loss_limits(losses, [loss for loss in first if np.isfinite(loss)])
    if limits is None or not drawn:
        return False
    axes.set_ylim(*limits)
    axes.set_ylabel("nats per token")
    _label_x(axes, label)
    return True


def _without_diverged(runs: Sequence[RunResults]) -> Sequence[RunResults]:
    """The runs that did not diverge; all runs if all diverged."""
    return [run for run in runs if run.status not in ("diverged", "empty")] or runs


def _event_marks(run: RunResults, loss: Curve) -> Curve:
    """Points on the training curve where the divergence guard acted."""
    steps = np.array([float(step) for step, _ in run.events])
    finite = np.isfinite(loss.values)
    if not finite.any():
        return Curve(np.empty(0), np.empty(0))
    return Curve(steps, np.interp(steps, loss.steps[finite], loss.values[finite]))


def _label_x(axes: Axes, label: str) -> None:
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(label)


def plain_numbers(axis: Axis) -> None:
    """Ticks of a logarithmic axis as 0.001 rather than as powers, which SVG shows as TeX."""
    low, high = axis.get_view_interval()
    between = (2, 5) if high > 5 * low else range(2, 10)  # of a short axis, more than the powers of ten

    def show_minor(value: float, _: object) -> str:
        leading = round(value / 10 ** np.floor(np.log10(value)))
        return f"{value:g}" if high < 30 * low and leading in between else ""

    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(show_minor)


def draw_values(
    axes: Axes, runs: Sequence[RunResults], colors: Sequence[str], key: str, *, log: bool = False, zero: bool = False
) -> bool:
    """Any value of the metrics by step."""
    drawn = False
    for run, color in zip(runs, colors, strict=True):
        curve = thin(smooth(run.curve(key)) if log or zero else run.curve(key))
        if np.isfinite(curve.values).any():
            axes.plot(curve.steps, curve.values, color=color, **line_style(run))
            drawn = True
    highest = [np.nanmax(line.get_ydata()) for line in axes.get_lines()]
    if drawn and (log or min(highest) < max(highest) / 20):
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
    if zero:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    _label_x(axes, "step")
    return drawn


def draw_positions(axes: Axes, runs: Sequence[RunResults], colors: Sequence[str], curves: dict[str, Curve]) -> bool:
    """Loss by position, on a logarithmic axis, since most happens early."""
    for run, color in zip(runs, colors, strict=True):
        curve = curves.get(run.name)
        if curve is not None and len(curve):
            axes.plot(curve.steps, curve.values, color=color, marker=".", markersize=4, **line_style(run))
    axes.set_xscale("log", base=2)
    plain_numbers(axes.xaxis)
    shown = [curves[run.name].values for run in _without_diverged(runs) if run.name in curves]
    if shown:
        low, high = min(values.min() for values in shown), max(values.max() for values in shown)
        room = 0.04 * (high - low) or 0.1
        axes.set_ylim(low - room, high + room)
    axes.set_xlabel("position (tokens)")
    axes.set_ylabel("nats per token")
    return any(len(curve) for curve in curves.values())
