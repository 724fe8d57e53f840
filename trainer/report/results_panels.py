"""The final result of each run over what varied, on one pair of axes.

Each `draw_` function returns whether there was anything to draw.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from trainer.report.panels import figure_text, plain_numbers
from trainer.runs.results import RunResults
from trainer.sweep.edge import Edge, without_seed

_LINE: Any = {"color": "#8b8b8b", "linewidth": 1, "zorder": 2}
_DIVERGED_HEIGHT = 0.96  # of the axes


def _key(runs: Sequence[RunResults]) -> tuple[str, str]:
    """What is compared, and its name: bits per byte where vocabularies differ."""
    if len({run.fingerprint for run in runs}) > 1:
        return "bits_per_byte", "bits per byte"
    return "validation_loss", "validation loss, nats per token"


def draw_final(
    axes: Axes, runs: Sequence[RunResults], colors: Sequence[str], axis: str, edge: Edge | None = None
) -> bool:
    """The final value of each run over the one setting that varies; the line joins means over seeds."""
    key, label = _key(runs)
    points: dict[float, list[float]] = {}
    all_x = []
    for run, color in zip(runs, colors, strict=True):
        value, x = run.final(key), float({**run.settings, **run.changes}[axis])
        if run.status == "diverged":
            axes.plot([x], [_DIVERGED_HEIGHT], "x", color=color, zorder=3, transform=axes.get_xaxis_transform())
        elif value is not None:
            points.setdefault(x, []).append(value)
            axes.plot([x], [value], "o", color=color, zorder=3)
        all_x.append(x)
    if len(points) < 2:
        return False
    places = sorted(points)
    axes.plot(places, [np.mean(points[x]) for x in places], **_LINE)
    axes.margins(y=0.12)
    if edge is not None and edge.stable and edge.diverged:
        axes.axvspan(edge.stable, edge.diverged, color="#8b8b8b", alpha=0.18, linewidth=0)
    if min(all_x) > 0 and max(all_x) > 5 * min(all_x):
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
    else:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(figure_text(axis))
    axes.set_ylabel(label)
    return True


def draw_variants(axes: Axes, colors: Sequence[str], *, runs: Sequence[RunResults]) -> bool:
    """The final value of each variant, its seeds on one line; the baseline is first, and a vertical line."""
    key, label = _key(runs)
    names = list(dict.fromkeys(_variant(run) for run in sorted(runs, key=lambda run: not run.baseline)))
    drawn, baseline = False, []
    for run, color in zip(runs, colors, strict=True):
        value, row = run.final(key), names.index(_variant(run))
        if run.status == "diverged":
            axes.plot([_DIVERGED_HEIGHT], [row], "x", color=color, zorder=3, transform=axes.get_yaxis_transform())
        elif value is not None:
            axes.plot([value], [row], "o", color=color, zorder=3)
            baseline += [value] if run.baseline else []
            drawn = True
    if baseline and sum(name.startswith("baseline") for name in names) == 1:
        axes.axvline(float(np.mean(baseline)), **_LINE)
    axes.margins(x=0.12)
    axes.set_yticks(range(len(names)), [figure_text(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(label)
    return drawn


def _variant(run: RunResults) -> str:
    """A run's name without its seed."""
    changes = ",".join(f"{name}={value}" for name, value in without_seed(run.changes).items())
    return ",".join(filter(None, ["baseline" if run.baseline else "", changes])) or run.name
