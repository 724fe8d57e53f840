"""The learning rates of a run: as a table with a plot for the terminal, as CSV, and as a figure."""

import io
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shared.system.files import write_bytes, write_text
from trainer.components.schedule import scheduled_learning_rate
from trainer.console.plot import bars
from trainer.errors import UsageError
from trainer.report.figures import STYLE
from trainer.settings.train import OptimizationSettings, TrainSettings

_COLUMNS, _LINES = 72, 8
_MOST_LISTED = 25  # steps of a table
_POINTS = 2_000  # of a figure
_MOST_ROWS = 2_000_000  # of a CSV, some seconds and 60 MB


def schedule_table(settings: TrainSettings) -> RenderableType:
    """The curve, and the rates of the steps at which it changes and of every tenth of the run."""
    o = settings.optimization
    rates = [_rate(step, o) for step in _spread(o.max_steps, _COLUMNS)]
    plot = [f"{max(rates):.3g}", *(f"│{line}" for line in bars(rates, _LINES))]
    axis = ["└" + "─" * _COLUMNS, f" 1{f'{o.max_steps:,}':>{_COLUMNS - 1}}"]
    table = Table("step")
    for name in ("tokens before it", "learning rate", "of the peak"):
        table.add_column(name, justify="right")
    for step in _marked_steps(o):
        rate = _rate(step, o)
        tokens = settings.shapes.tokens(step - 1)
        table.add_row(f"{step:,}", f"{tokens:,}", f"{rate:.6g}", f"{rate / (o.learning_rate or 1):.2%}")
    return Group(Text(_title(o), style="bold"), Text("\n".join((*plot, *axis)), no_wrap=True), table)


def check_file(path: Path, max_steps: int) -> None:
    """Refuse a file that `save_rates` cannot write.

    Raises:
        UsageError: another kind of file, or more steps than a CSV may have.
    """
    if path.suffix.lower() not in (".csv", ".svg", ".png"):
        raise UsageError(f"--save {path}: the name must end in .csv, .svg or .png")
    if path.suffix.lower() == ".csv" and max_steps > _MOST_ROWS:
        raise UsageError(
            f"--save {path}: --max-steps is {max_steps:,}, and a CSV has at most {_MOST_ROWS:,} rows; save .svg or .png"
        )


def save_rates(settings: TrainSettings, path: Path) -> None:
    """Write the rate of every step as CSV, or draw the curve; `check_file` lists the supported formats.

    Raises:
        OSError: it cannot be written.
    """
    o = settings.optimization
    if path.suffix.lower() == ".csv":
        rows = (f"{step},{_rate(step, o)!r}\n" for step in range(1, o.max_steps + 1))
        write_text(path, "step,learning_rate\n" + "".join(rows))
        return
    steps = _spread(o.max_steps, _POINTS)
    with mpl.rc_context(STYLE | {"svg.hashsalt": "schedule"}):
        figure = Figure(figsize=(5.4, 3.5), dpi=160, layout="constrained")
        axes = figure.add_subplot()
        axes.plot(steps, [_rate(step, o) for step in steps])
        axes.set(title=_title(o), xlabel="step", ylabel="learning rate")
        axes.set_ylim(bottom=0)
        output = io.BytesIO()
        figure.savefig(output, format=path.suffix[1:].lower())
    write_bytes(path, output.getvalue())


def _rate(step: int, o: OptimizationSettings) -> float:
    """Of a step, from 1."""
    return scheduled_learning_rate(step - 1, o)


def _title(o: OptimizationSettings) -> str:
    start = " from 0" if o.warmup_from_zero and o.warmup_steps else ""
    return f"Learning rate: {o.schedule}, max_steps {o.max_steps:,}, warmup_steps {o.warmup_steps:,}{start}"


def _spread(max_steps: int, count: int) -> list[int]:
    """So many steps, evenly from the first to the last; some repeat where there are fewer."""
    return [1 + i * (max_steps - 1) // (count - 1) for i in range(count)]


def _marked_steps(o: OptimizationSettings) -> list[int]:
    """The first and the last, the ends of warm-up and plateau, and every tenth; all of a short run."""
    if o.max_steps <= _MOST_LISTED:
        return list(range(1, o.max_steps + 1))
    warm = (o.warmup_steps or 0) + 1
    decay = [o.max_steps - round(o.decay_share * o.max_steps) + 1] if o.schedule == "wsd" else []
    tenths = [tenth * o.max_steps // 10 for tenth in range(1, 10)]
    return sorted({step for step in (1, warm, *decay, *tenths, o.max_steps) if 1 <= step <= o.max_steps})
