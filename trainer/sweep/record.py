"""`sweep.json` and the table at the end: how each run ended."""

import dataclasses
import json
import math
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from shared.system.files import to_json, write_text
from shared.system.regular_file import LARGEST_RECORD, read_regular
from trainer.runs.json_types import has_type
from trainer.runs.results import RunResults
from trainer.sweep.baseline import Compared, differences
from trainer.sweep.edge import find_edges, group_of
from trainer.sweep.plan import PlannedRun
from trainer.sweep.studies import RATE

FILE = "sweep.json"
_NUMBER = (None, float)
_LONG = 1e4  # a loss from here on is that of a run that diverged
_OUTCOME = {
    "name": str,
    "baseline": (None, bool),
    "changes": dict,
    "status": str,
    "reason": (None, str),
    "step": int,
    "loss": _NUMBER,
    "validation_loss": _NUMBER,
    "best_validation_loss": _NUMBER,
    "bits_per_byte": _NUMBER,
    "tokens": _NUMBER,
    "tokens_per_second": _NUMBER,
    "seconds": _NUMBER,
}


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        name: Its folder in the sweep's.
        changes: What sets it apart.
        baseline: Whether it is what the variants of its study are compared with.
        status: `finished`, `diverged` or `failed`.
        reason: Why it did not finish.
        step: The last step logged.
        loss: Mean training loss of the last tenth of the records.
        validation_loss: The last one.
        best_validation_loss: The lowest one.
        bits_per_byte: The last one.
        tokens: Trained on.
        tokens_per_second: Median.
        seconds: Wall-clock time of the run.
    """

    name: str
    changes: dict[str, Any]
    baseline: bool | None
    status: str
    reason: str
    step: int
    loss: float | None
    validation_loss: float | None
    best_validation_loss: float | None
    bits_per_byte: float | None
    tokens: float | None
    tokens_per_second: float | None
    seconds: float | None

    @classmethod
    def of(cls, run: PlannedRun, results: RunResults, *, status: int, last_line: str) -> "Outcome":
        """From the run folder, and the exit status and last line of the process that trained."""
        best = results.best("validation_loss")
        loss = results.final_loss
        outcome, reason = _judge(results, status, last_line)
        return cls(
            name=run.name,
            changes=run.changes,
            baseline=run.baseline,
            status=outcome,
            reason=reason,
            step=results.last_step,
            loss=None if loss is None or loss != loss else loss,  # noqa: PLR0124 - NaN
            validation_loss=results.final("validation_loss"),
            best_validation_loss=best and best[0],
            bits_per_byte=results.final("bits_per_byte"),
            tokens=results.final("tokens"),
            tokens_per_second=results.tokens_per_second,
            seconds=results.final("seconds"),
        )

    @property
    def rank(self) -> tuple[bool, float]:
        """Smaller is better: bits per byte, which are comparable between vocabularies; else the loss."""
        values = (self.bits_per_byte, self.validation_loss, self.loss)
        return self.status != "finished", next((value for value in values if value is not None), float("inf"))


def _judge(results: RunResults, status: int, last_line: str) -> tuple[str, str]:
    if status < 0:
        name = signal.Signals(-status).name
        return "failed", f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    if results.status == "diverged" or (status and "training diverged" in last_line):
        return "diverged", last_line if status else _divergence(results)
    if status:
        return "failed", last_line
    return "finished", ""


def _divergence(results: RunResults) -> str:
    """Why a run counts as diverged that did not stop by itself."""
    loss = results.curve("loss").values
    if not len(loss) or results.final_loss is None or math.isnan(results.final_loss):
        return "the loss is not a number"
    return f"the loss rose to {results.highest_loss:.4g}, the median over a tenth of the run; it began at {loss[0]:.4g}"


def read_outcomes(folder: Path, notes: list[str] | None = None) -> dict[str, Outcome]:
    """What `write_sweep` wrote, by name, as far as it is there and of the kind that was written.

    Args:
        folder: The sweep's.
        notes: What is left out is added.
    """
    content = _read(folder)
    if content is None:
        return {}
    runs = content.get("runs")
    sound = [run for run in runs if has_type(run, _OUTCOME)] if isinstance(runs, list) else []
    if notes is not None and sound != runs:
        notes.append(f"{FILE}: is damaged: some of its runs are not valid")
    return {run["name"]: Outcome(**{name: run.get(name) for name in _OUTCOME}) for run in sound}


def read_notes(folder: Path) -> list[str]:
    """What `write_sweep` wrote on what the runs compare; nothing where that is missing or damaged."""
    notes = (_read(folder) or {}).get("notes")
    return notes if has_type(notes, [str]) else []  # type: ignore[return-value]  # a list of strings


def _read(folder: Path) -> dict[str, Any] | None:
    """The file's table, empty where it is damaged; None where there is no file."""
    try:
        content = json.loads(read_regular(folder / FILE, LARGEST_RECORD))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def write_sweep(folder: Path, outcomes: Iterable[Outcome], notes: Sequence[str]) -> None:
    """Write the folder's `sweep.json`, whole or not at all, best run first.

    Args:
        folder: The sweep's.
        outcomes: Of its runs.
        notes: What the runs compare.
    """
    runs = [dataclasses.asdict(outcome) for outcome in sorted(outcomes, key=lambda outcome: outcome.rank)]
    write_text(folder / FILE, to_json({"notes": list(notes), "runs": runs}))


def summary_table(outcomes: Sequence[Outcome]) -> Table:
    """A row for each run, best first, with the edge of stability marked, and variants beside their baseline."""
    edges = find_edges((outcome.changes, outcome.status) for outcome in outcomes)
    outcomes = sorted(outcomes, key=lambda outcome: outcome.rank)
    compared = any(outcome.baseline for outcome in outcomes)
    losses = [None if outcome.status == "diverged" else outcome.validation_loss for outcome in outcomes]
    beside = differences(Compared(o.changes, bool(o.baseline), v) for o, v in zip(outcomes, losses, strict=True))
    table = Table(box=None, header_style="", pad_edge=False, collapse_padding=True)
    axes = ["run"] if compared else list(dict.fromkeys(key for outcome in outcomes for key in outcome.changes))
    for name in axes:
        table.add_column(name, overflow="fold")
    measured = ("bits/byte", "val. loss", *(["vs. baseline"] if compared else []), "best", "train loss")
    for name in (*measured, "tokens/s", "time"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("", overflow="fold")
    for outcome, difference in zip(outcomes, beside, strict=True):
        edge = edges.get(group_of(outcome.changes))
        mark = edge.mark(outcome.changes.get(RATE)) if edge else ""
        table.add_row(
            *([outcome.name] if compared else (_value(outcome.changes.get(axis, "")) for axis in axes)),
            *(_number(value) for value in (outcome.bits_per_byte, outcome.validation_loss)),
            *([difference] if compared else []),
            *(_number(value) for value in (outcome.best_validation_loss, outcome.loss)),
            "" if outcome.tokens_per_second is None else f"{outcome.tokens_per_second:,.0f}",
            "" if outcome.seconds is None else _time(outcome.seconds),
            ", ".join(filter(None, [outcome.status, mark])),
        )
    return table


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}" if value < _LONG else f"{value:.3g}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
