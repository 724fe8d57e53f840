"""The figures of a report, each as a file for documents and as SVG that follows the page's colors."""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from shared.system.files import write_text
from trainer.report.colors import colors_of
from trainer.report.panels import LONGEST_TEXT, draw_losses, draw_positions, draw_values, line_style, printable
from trainer.report.positions import PositionLoss
from trainer.report.results_panels import draw_final, draw_variants
from trainer.runs.results import RunResults
from trainer.sweep.edge import Edge
from trainer.sweep.studies import RATE

_MOST_IN_A_LEGEND = 32
_TAG, _DECIMALS = re.compile(r"<[^>]*>"), re.compile(r"(\d\.\d\d)\d+")
_INK, _GRID = "#010203", "#040506"  # stand for colors that the page gives
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
    """A finished figure.

    Attributes:
        name: Of its file, without suffix.
        title: What it shows.
        note: How to read it; may be empty.
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
        sketches = _final_sketches(runs, colors, axis, edges) + _sketches(runs, colors, positions)
        drawn = (_draw(sketch, runs, colors, files) for sketch in sketches)
        return [picture for picture in drawn if picture is not None]


def _final_sketches(
    runs: Sequence[RunResults], colors: Sequence[str], axis: str | None, edges: Sequence[Edge]
) -> list[Sketch]:
    """The final loss over what varied."""
    if any(run.baseline for run in runs):
        note = "The line is the baseline; a cross is a run that diverged."
        draw = partial(draw_variants, runs=runs, colors=colors)
        return [Sketch("final-loss-by-run", "Final loss by run", draw, note, legend=False)]
    if axis is None:
        return []
    file = "final-loss-by-" + re.sub(r"[^\w.=,+-]", "_", axis)[:LONGEST_TEXT]
    edge = edges[0] if axis == RATE and len(edges) == 1 else None
    note = "A cross at the top is a run that diverged." if any(run.status == "diverged" for run in runs) else ""
    if edge is not None and edge.stable and edge.diverged:
        note += f" Shaded: the edge of stability, between {edge.stable:g} and {edge.diverged:g}."
    title = f"Final loss by {printable(axis)}"
    return [Sketch(file, title, lambda ax: draw_final(ax, runs, colors, axis, edge), note)]


def _sketches(runs: Sequence[RunResults], colors: Sequence[str], positions: dict[str, PositionLoss]) -> list[Sketch]:
    smoothed = "Training loss (thin, mean over 2 % of the records), validation loss (thick, with points)."
    return [
        Sketch("loss-by-step", "Loss by step", lambda ax: draw_losses(ax, runs, colors, "step"), smoothed),
        Sketch("loss-by-time", "Loss by time", lambda ax: draw_losses(ax, runs, colors, "time")),
        Sketch("loss-by-tokens", "Loss by tokens", lambda ax: draw_losses(ax, runs, colors, "tokens")),
        Sketch("learning-rate", "Learning rate", lambda ax: draw_values(ax, runs, colors, "learning_rate")),
        Sketch("gradient-norm", "Gradient norm", lambda ax: draw_values(ax, runs, colors, "grad_norm", log=True)),
        Sketch(
            "throughput", "Tokens a second", lambda ax: draw_values(ax, runs, colors, "tokens_per_second", zero=True)
        ),
        Sketch(
            *("loss-by-window-position", "Loss by position in the window"),
            lambda ax: draw_positions(ax, runs, colors, {name: p.window for name, p in positions.items()}),
            "Validation text in windows, one after another: more text before a token, less loss.",
        ),
        Sketch(
            *("loss-by-document-position", "Loss by position in the document"),
            lambda ax: draw_positions(ax, runs, colors, {name: p.document for name, p in positions.items()}),
            "Each validation document alone, from its first token, up to the context length.",
        ),
    ]


def _draw(sketch: Sketch, runs: Sequence[RunResults], colors: Sequence[str], files: FigureFiles) -> Picture | None:
    with mpl.rc_context(_PAGE_COLORS):
        figure = _figure(sketch)
        if figure is None:
            return None
        svg = _svg(figure, sketch)
    figure = _figure(sketch)
    assert figure is not None
    figure.axes[0].set_title(sketch.title)
    if sketch.legend and 1 < len(runs) <= _MOST_IN_A_LEGEND:
        figure.set_size_inches(7.6, max(3.5, 0.17 * len(runs) + 0.5))
        lines = [Line2D([], [], color=color, **line_style(run)) for run, color in zip(runs, colors, strict=True)]
        figure.legend(lines, [printable(run.name) for run in runs], loc="outside right upper")
    path = files.folder / f"{sketch.name}.{files.format}"
    if files.format == "svg":
        write_text(path, _svg_file(figure, sketch.name))
    else:
        figure.savefig(path, format="png")
    return Picture(sketch.name, sketch.title, sketch.note, svg)


def _figure(sketch: Sketch) -> Figure | None:
    figure = Figure(figsize=(5.4, 3.5), dpi=160, layout="constrained")
    return figure if sketch.draw(figure.add_subplot()) else None


def _svg(figure: Figure, sketch: Sketch) -> str:
    """The figure as an element that takes the page's width, and the page's colors for text and lines."""
    text = _svg_file(figure, sketch.name)
    text = text[text.index("<svg") :].replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
    described = f'role="img" aria-label="{escape(sketch.title)}"'
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', lambda _: described, text, count=1)


def _svg_file(figure: Figure, salt: str) -> str:
    """The figure as an SVG document; a salt of its own keeps its ids apart from those of other figures on a page."""
    output = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": salt}):
        figure.savefig(output, format="svg", metadata={"Date": None, "Creator": None})
    # Beyond a hundredth of a point nothing is visible; texts stay as they are.
    return _TAG.sub(lambda tag: _DECIMALS.sub(r"\1", tag[0]), output.getvalue().decode())
