"""`sweep.json` and the table at the end: how each run ended."""

import dataclasses
import json
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from shared.system.files import to_json, write_text
from shared.system.regular_file import LARGEST_RECORD, read_regular
from trainer.runs.json_types import has_type
from trainer.runs.results import RunResults
from trainer.sweep.plan import PlannedRun

FILE = "sweep.json"
_NUMBER = (None, float)
_OUTCOME = {
    "name": str,
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
        loss = results.curve("loss").values
        reason = f"the loss ended at {results.final_loss:.4g} and began at {loss[0]:.4g}" if len(loss) else ""
        return "diverged", last_line if status else reason
    if status:
        return "failed", last_line
    return "finished", ""


def read_outcomes(folder: Path, notes: list[str] | None = None) -> dict[str, Outcome]:
    """What `write_sweep` wrote, by name, as far as it is there and of the kind that was written.

    Args:
        folder: The sweep's.
        notes: What is left out is added.
    """
    try:
        content = json.loads(read_regular(folder / FILE, LARGEST_RECORD))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        content = None
    runs = content.get("runs") if isinstance(content, dict) else None
    sound = [run for run in runs if has_type(run, _OUTCOME)] if isinstance(runs, list) else []
    if notes is not None and sound != runs:
        notes.append(f"{FILE}: is damaged: some of its runs are not valid")
    return {run["name"]: Outcome(**{name: run.get(name) for name in _OUTCOME}) for run in sound}


def write_sweep(folder: Path, outcomes: Iterable[Outcome]) -> None:
    """Write the folder's `sweep.json`, whole or not at all, best run first."""
    runs = [dataclasses.asdict(outcome) for outcome in sorted(outcomes, key=lambda outcome: outcome.rank)]
    write_text(folder / FILE, to_json({"runs": runs}))


def summary_table(outcomes: Iterable[Outcome]) -> Table:
    """A row for each run, best first."""
    outcomes = sorted(outcomes, key=lambda outcome: outcome.rank)
    table = Table(box=None, header_style="", pad_edge=False, collapse_padding=True)
    axes = list(dict.fromkeys(key for outcome in outcomes for key in outcome.changes))
    for name in axes:
        table.add_column(name, overflow="fold")
    for name in ("bits/byte", "val. loss", "best", "train loss", "tokens/s", "time"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("", overflow="fold")
    for outcome in outcomes:
        table.add_row(
            *(str(outcome.changes.get(axis, "")) for axis in axes),
            *(_number(value) for value in (outcome.bits_per_byte, outcome.validation_loss)),
            *(_number(value) for value in (outcome.best_validation_loss, outcome.loss)),
            "" if outcome.tokens_per_second is None else f"{outcome.tokens_per_second:,.0f}",
            "" if outcome.seconds is None else _time(outcome.seconds),
            outcome.status,
        )
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
