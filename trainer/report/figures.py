"""The figures of a report, each as PNG for documents and as SVG that follows the page's colours."""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from trainer.report.colors import colors_of
from trainer.report.curves import loss_limits, smooth, thin
from trainer.report.positions import PositionLoss
from trainer.runs.results import Curve, Floats, RunResults

XAxis = Literal["step", "time", "tokens"]

_MOST_IN_A_LEGEND = 32
_LONGEST_TEXT = 50
_INK, _GRID = "#010203", "#040506"  # stand for colours that the page gives
_STYLE: Any = {
    "font.family": ["sans-serif"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "legend.frameon": False,
    "legend.fontsize": 8,
}
_TRAINING: Any = {"linewidth": 0.9, "alpha": 0.75}
_VALIDATION: Any = {"marker": ".", "markersize": 5}
_PAGE_COLORS: Any = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), _INK),
    "grid.color": _GRID,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn.

    Attributes:
        name: Of its file, without suffix.
        title: What it shows.
        note: What the eye needs to know; may be empty.
        svg: For the page.
    """

    name: str
    title: str
    note: str
    svg: str


@dataclass(frozen=True)
class Sketch:
    """A figure to be drawn: `draw` puts it on axes and returns whether there was anything to draw."""

    name: str
    title: str
    draw: Callable[[Axes], bool]
    note: str = ""


def draw_all(
    runs: Sequence[RunResults], positions: dict[str, PositionLoss], folder: Path, *, axis: str | None
) -> list[Picture]:
    """Draw what there is to draw, and write the PNG files.

    Args:
        runs: The runs, in the order of their colours.
        positions: Loss by position, by run's name.
        folder: For the PNG files; made if missing.
        axis: The one setting that varies, if there is one and it is a number.
    """
    colors = colors_of(runs)
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that the font lacks, and labels without room
        drawn = (_draw(sketch, runs, colors, folder) for sketch in _sketches(runs, colors, positions, axis))
        return [picture for picture in drawn if picture is not None]


def _sketches(
    runs: Sequence[RunResults], colors: Sequence[str], positions: dict[str, PositionLoss], axis: str | None
) -> list[Sketch]:
    smoothed = "Training loss (thin, mean over 2 % of the records), validation loss (thick, with points)."
    sketches = [
        Sketch("loss-by-step", "Loss by step", lambda ax: _losses(ax, runs, colors, "step"), smoothed),
        Sketch("loss-by-time", "Loss by time", lambda ax: _losses(ax, runs, colors, "time")),
        Sketch("loss-by-tokens", "Loss by tokens", lambda ax: _losses(ax, runs, colors, "tokens")),
        Sketch("learning-rate", "Learning rate", lambda ax: _values(ax, runs, colors, "learning_rate")),
        Sketch("gradient-norm", "Gradient norm", lambda ax: _values(ax, runs, colors, "grad_norm", log=True)),
        Sketch("throughput", "Tokens a second", lambda ax: _values(ax, runs, colors, "tokens_per_second", zero=True)),
        Sketch(
            *("loss-by-window-position", "Loss by position in the window"),
            lambda ax: _positions(ax, runs, colors, {name: p.window for name, p in positions.items()}, "position"),
            "Validation text in windows, one after another: more text before a token, less loss.",
        ),
        Sketch(
            *("loss-by-document-position", "Loss by position in the document"),
            lambda ax: _positions(ax, runs, colors, {name: p.document for name, p in positions.items()}, "position"),
            "Each validation document alone, from its first token, up to the context length.",
        ),
    ]
    if axis is not None:
        file = "final-loss-by-" + re.sub(r"[^\w.=,+-]", "_", axis)[:_LONGEST_TEXT]
        final = Sketch(file, f"Final loss by {printable(axis)}", lambda ax: _final(ax, runs, colors, axis))
        sketches.insert(0, final)
    return sketches


def _draw(sketch: Sketch, runs: Sequence[RunResults], colors: Sequence[str], folder: Path) -> Picture | None:
    with mpl.rc_context(_PAGE_COLORS):
        figure = _figure(sketch)
        if figure is None:
            return None
        svg = _svg(figure, sketch)
    figure = _figure(sketch)
    assert figure is not None
    figure.axes[0].set_title(sketch.title)
    if 1 < len(runs) <= _MOST_IN_A_LEGEND:
        figure.set_size_inches(7.6, max(3.5, 0.17 * len(runs) + 0.5))
        lines = [Line2D([], [], color=color) for color in colors]
        figure.legend(lines, [printable(run.name) for run in runs], loc="outside right upper")
    figure.savefig(folder / f"{sketch.name}.png", format="png")
    return Picture(sketch.name, sketch.title, sketch.note, svg)


def _figure(sketch: Sketch) -> Figure | None:
    figure = Figure(figsize=(5.4, 3.5), dpi=160, layout="constrained")
    return figure if sketch.draw(figure.add_subplot()) else None


def _svg(figure: Figure, sketch: Sketch) -> str:
    """The figure as an element that takes the page's width, and the page's colours for text and lines."""
    output = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": sketch.name}):  # ids of the page's figures must differ
        figure.savefig(output, format="svg", metadata={"Date": None, "Creator": None})
    text = output.getvalue().decode()
    text = text[text.index("<svg") :].replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
    described = f'role="img" aria-label="{escape(sketch.title)}"'
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', lambda _: described, text, count=1)


def printable(text: str) -> str:
    """A text that a font can show, on one line, and not so long that no room is left for what it names."""
    shown = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return shown if len(shown) <= _LONGEST_TEXT else f"{shown[: _LONGEST_TEXT - 1]}…"


def _x(run: RunResults, curve: Curve, axis: XAxis, unit: float) -> Floats:
    if axis == "step":
        return curve.steps
    return run.at("seconds" if axis == "time" else "tokens", curve.steps) / unit


def _time_unit(runs: Sequence[RunResults]) -> tuple[float, str]:
    longest = max((run.final("seconds") or 0.0 for run in runs), default=0.0)
    units = ((3600.0, "hours"), (60.0, "minutes"))
    return next((unit for unit in units if longest >= 2 * unit[0]), (1.0, "seconds"))


def _losses(axes: Axes, runs: Sequence[RunResults], colors: Sequence[str], axis: XAxis) -> bool:
    """Training and validation losses of all runs, and what the guard did."""
    unit, label = _time_unit(runs) if axis == "time" else (1.0, axis)
    drawn = False
    for run, color in zip(runs, colors, strict=True):
        train, validation = thin(smooth(run.curve("loss"))), thin(run.curve("validation_loss"))
        for curve, style in ((train, _TRAINING), (validation, _VALIDATION)):
            x = _x(run, curve, axis, unit)
            if np.isfinite(x).any():
                axes.plot(x, curve.values, color=color, **style)
                drawn = True
        marks = _event_marks(run, train)
        axes.plot(_x(run, marks, axis, unit), marks.values, "x", color=color, markersize=8, markeredgewidth=2)
    sane = _sane(runs)
    losses = [smooth(run.curve(key)) for run in sane for key in ("loss", "validation_loss")]
    first = [float(run.curve("loss").values[0]) for run in sane if len(run.curve("loss"))]
    limits = loss_limits(losses, [loss for loss in first if np.isfinite(loss)])
    if limits is None or not drawn:
        return False
    axes.set_ylim(*limits)
    axes.set_ylabel("nats a token")
    _label_x(axes, label)
    return True


def _sane(runs: Sequence[RunResults]) -> Sequence[RunResults]:
    """Those that did not diverge; all, if all did."""
    return [run for run in runs if run.status not in ("diverged", "empty")] or runs


def _event_marks(run: RunResults, loss: Curve) -> Curve:
    """Points on the training curve where the guard did something."""
    steps = np.array([float(step) for step, _ in run.events])
    finite = np.isfinite(loss.values)
    if not finite.any():
        return Curve(np.empty(0), np.empty(0))
    return Curve(steps, np.interp(steps, loss.steps[finite], loss.values[finite]))


def _label_x(axes: Axes, label: str) -> None:
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(label)


def _plain_numbers(axis: Axis) -> None:
    """Ticks of a logarithmic axis as 0.001 rather than as powers, which SVG shows as TeX."""
    low, high = axis.get_view_interval()
    between = (2, 5) if high > 5 * low else range(2, 10)  # of a short axis, more than the powers of ten

    def show_minor(value: float, _: object) -> str:
        leading = round(value / 10 ** np.floor(np.log10(value)))
        return f"{value:g}" if high < 30 * low and leading in between else ""

    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(show_minor)


def _values(
    axes: Axes, runs: Sequence[RunResults], colors: Sequence[str], key: str, *, log: bool = False, zero: bool = False
) -> bool:
    """Any value of the metrics by step."""
    drawn = False
    for run, color in zip(runs, colors, strict=True):
        curve = thin(smooth(run.curve(key)) if log or zero else run.curve(key))
        if np.isfinite(curve.values).any():
            axes.plot(curve.steps, curve.values, color=color)
            drawn = True
    highest = [np.nanmax(line.get_ydata()) for line in axes.get_lines()]
    if drawn and (log or min(highest) < max(highest) / 20):
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    if zero:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    _label_x(axes, "step")
    return drawn


def _positions(
    axes: Axes, runs: Sequence[RunResults], colors: Sequence[str], curves: dict[str, Curve], label: str
) -> bool:
    """Loss by position, on a logarithmic axis, since most happens early."""
    for run, color in zip(runs, colors, strict=True):
        curve = curves.get(run.name)
        if curve is not None and len(curve):
            axes.plot(curve.steps, curve.values, color=color, marker=".", markersize=4)
    axes.set_xscale("log", base=2)
    _plain_numbers(axes.xaxis)
    shown = [curves[run.name].values for run in _sane(runs) if run.name in curves]
    if shown:
        low, high = min(values.min() for values in shown), max(values.max() for values in shown)
        room = 0.04 * (high - low) or 0.1
        axes.set_ylim(low - room, high + room)
    axes.set_xlabel(f"{label} (tokens)")
    axes.set_ylabel("nats a token")
    return any(len(curve) for curve in curves.values())


def _final(axes: Axes, runs: Sequence[RunResults], colors: Sequence[str], axis: str) -> bool:
    """The final value of each run over the one setting that varies; bits per byte where vocabularies differ."""
    key = "bits_per_byte" if len({run.fingerprint for run in runs}) > 1 else "validation_loss"
    points = []
    for run, color in zip(runs, colors, strict=True):
        value = run.final(key)
        if value is None or run.status == "diverged":
            continue
        x = float({**run.settings, **run.changes}[axis])
        points.append((x, value))
        axes.plot([x], [value], "o", color=color, zorder=3)
    if len(points) < 2:
        return False
    points.sort()
    axes.plot(*zip(*points, strict=True), color="#8b8b8b", linewidth=1, zorder=2)
    if points[0][0] > 0 and points[-1][0] > 5 * points[0][0]:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
    else:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(printable(axis))
    axes.set_ylabel("bits a byte" if key == "bits_per_byte" else "validation loss, nats a token")
    return True
