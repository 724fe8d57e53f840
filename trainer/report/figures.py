"""The figures of a report as files for documents, and those that the page cannot draw itself as SVG in its colors."""

import base64
import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from shared.system.files import write_text
from trainer.report.colors import colors_of
from trainer.report.panels import LONGEST_TEXT, XAxis, draw_losses, draw_positions, draw_values, figure_text, line_style
from trainer.report.positions import PositionLoss
from trainer.report.results_panels import draw_final, draw_variants
from trainer.runs.results import Curve, RunResults
from trainer.sweep.edge import Edge
from trainer.sweep.studies import RATE

_MOST_IN_A_LEGEND = 32
_TAG, _DECIMALS = re.compile(r"<[^>]*>"), re.compile(r"(\d\.\d\d)\d+")
_INK, _GRID = "#010203", "#040506"  # stand for colors of the page
_SERIES = [f"#0102{number:02x}" for number in range(0x10, 0x16)]
_VARIABLES = {_INK: "var(--ink)", _GRID: "var(--line)", **{c: f"var(--series-{i})" for i, c in enumerate(_SERIES, 1)}}
# Those of the pages' base.css and chart.css, which a picture cannot see.
_STYLE_SHEET = """:root { color-scheme: light dark;
--ink: light-dark(#1a1d21, #e7eaed); --line: light-dark(#d5d9de, #363d45);
--series-1: light-dark(#0b5fc0, #78b4ff); --series-2: light-dark(#b5460f, #ff9d66);
--series-3: light-dark(#0b7a55, #4fd1a1); --series-4: light-dark(#8a3fb3, #d3a1f5);
--series-5: light-dark(#8a6400, #e5c04d); --series-6: light-dark(#b3276b, #ff8fbf); }"""
STYLE: Any = {
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
_PAGE_COLORS: Any = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), _INK),
    "grid.color": _GRID,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}


@dataclass(frozen=True)
class FigureFiles:
    """Where the figures go as files, and their format."""

    folder: Path
    format: Literal["png", "svg"] = "png"


@dataclass(frozen=True)
class Picture:
    """A figure for the page.

    Attributes:
        title: What it shows.
        note: How to read it; may be empty.
        source: The image as a data URL.
    """

    title: str
    note: str
    source: str


@dataclass(frozen=True)
class Sketch:
    """A figure to be drawn.

    Attributes:
        name: Of its file, without suffix.
        title: What it shows.
        draw: Puts it on axes in these colors; returns whether there was anything to draw.
        note: How to read it; may be empty.
        legend: Whether its file has one.
    """

    name: str
    title: str
    draw: Callable[[Axes, Sequence[str]], bool]
    note: str = ""
    legend: bool = True


def draw_all(
    runs: Sequence[RunResults],
    positions: dict[str, PositionLoss],
    files: FigureFiles,
    *,
    axis: str | None,
    edges: Sequence[Edge],
) -> list[Picture]:
    """Draw what there is to draw, and write the files.

    Returns:
        The figures that are for the page.

    Args:
        runs: The runs, in the order of their colors.
        positions: Loss by position, by run's name.
        files: The folder is made if missing.
        axis: The one setting that varies, if there is one and it is a number.
        edges: Of stability.
    """
    colors = colors_of(runs)
    files.folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that the font lacks, and labels without room
        final = _final_sketches(runs, axis, edges)
        for sketch in [*final, *_sketches(runs, positions)]:
            _draw_file(sketch, runs, colors, files)
        drawn = [_draw_picture(sketch, len(runs)) for sketch in final]
        return [picture for picture in drawn if picture is not None]


def _final_sketches(runs: Sequence[RunResults], axis: str | None, edges: Sequence[Edge]) -> list[Sketch]:
    """The final loss over what varied."""
    if any(run.baseline for run in runs):
        note = "The line is the baseline; a cross is a run that diverged."
        draw = partial(draw_variants, runs=runs)
        return [Sketch("final-loss-by-run", "Final loss by run", draw, note, legend=False)]
    if axis is None:
        return []
    file = "final-loss-by-" + re.sub(r"[^\w.=,+-]", "_", axis)[:LONGEST_TEXT]
    edge = edges[0] if axis == RATE and len(edges) == 1 else None
    note = "A cross at the top is a run that diverged." if any(run.status == "diverged" for run in runs) else ""
    if edge is not None and edge.stable and edge.diverged:
        note += f" Shaded: the edge of stability, between {edge.stable:g} and {edge.diverged:g}."
    title = f"Final loss by {figure_text(axis)}"
    return [Sketch(file, title, lambda ax, colors: draw_final(ax, runs, colors, axis, edge), note)]


def _sketches(runs: Sequence[RunResults], positions: dict[str, PositionLoss]) -> list[Sketch]:
    def loss(axis: XAxis) -> Sketch:
        return Sketch(f"loss-by-{axis}", f"Loss by {axis}", lambda ax, colors: draw_losses(ax, runs, colors, axis))

    def value(name: str, title: str, key: str, **scale: bool) -> Sketch:
        return Sketch(name, title, lambda ax, colors: draw_values(ax, runs, colors, key, **scale))

    def position(name: str, curves: dict[str, Curve]) -> Sketch:
        title = f"Loss by position in the {name}"
        return Sketch(f"loss-by-{name}-position", title, lambda ax, colors: draw_positions(ax, runs, colors, curves))

    return [
        loss("step"),
        loss("time"),
        loss("tokens"),
        value("learning-rate", "Learning rate", "learning_rate"),
        value("gradient-norm", "Gradient norm", "grad_norm", log=True),
        value("throughput", "Tokens per second", "tokens_per_second", zero=True),
        position("window", {name: each.window for name, each in positions.items()}),
        position("document", {name: each.document for name, each in positions.items()}),
    ]


def _draw_picture(sketch: Sketch, num_runs: int) -> Picture | None:
    """The figure in the page's colors, which follow the system's scheme."""
    with mpl.rc_context(_PAGE_COLORS):
        figure = _figure(sketch, [_SERIES[number % len(_SERIES)] for number in range(num_runs)])
        if figure is None:
            return None
        text = _svg_file(figure, sketch.name)
    text = text[text.index("<svg") :]
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    text = text.replace(">", f"><style>{_STYLE_SHEET}</style>", 1)
    source = "data:image/svg+xml;base64," + base64.b64encode(text.encode()).decode()
    return Picture(sketch.title, sketch.note, source)


def _draw_file(sketch: Sketch, runs: Sequence[RunResults], colors: Sequence[str], files: FigureFiles) -> None:
    figure = _figure(sketch, colors)
    if figure is None:
        return
    figure.axes[0].set_title(sketch.title)
    if sketch.legend and 1 < len(runs) <= _MOST_IN_A_LEGEND:
        figure.set_size_inches(7.6, max(3.5, 0.17 * len(runs) + 0.5))
        lines = [Line2D([], [], color=color, **line_style(run)) for run, color in zip(runs, colors, strict=True)]
        figure.legend(lines, [figure_text(run.name) for run in runs], loc="outside right upper")
    path = files.folder / f"{sketch.name}.{files.format}"
    if files.format == "svg":
        write_text(path, _svg_file(figure, sketch.name))
    else:
        figure.savefig(path, format="png")


def _figure(sketch: Sketch, colors: Sequence[str]) -> Figure | None:
    figure = Figure(figsize=(5.4, 3.5), dpi=160, layout="constrained")
    return figure if sketch.draw(figure.add_subplot(), colors) else None


def _svg_file(figure: Figure, salt: str) -> str:
    """The figure as an SVG document; a salt of its own keeps its ids apart from those of other figures on a page."""
    output = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": salt}):
        figure.savefig(output, format="svg", metadata={"Date": None, "Creator": None})
    # Beyond a hundredth of a point nothing is visible; texts stay as they are.
    return _TAG.sub(lambda tag: _DECIMALS.sub(r"\1", tag[0]), output.getvalue().decode())
