"""A run folder read back: settings, curves, samples, and how the run ended. For sweeps and reports; needs no torch."""

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trainer.runs.folder import RunFolder
from trainer.runs.json_types import valid_settings
from trainer.runs.metrics_table import Curve, Floats, MetricsTable
from trainer.runs.record import valid_record
from trainer.runs.standing import UNKNOWN, Standing, standing

__all__ = ["Curve", "Floats", "RunReader", "RunResults", "Status", "is_run", "read_run"]

Status = Literal["finished", "diverged", "unfinished", "empty"]
_LEAST_RECENT, _MOST_RECENT = 20, 200  # records that the time left is estimated from: a tenth, within these limits
_ABOVE_THE_START = 1.05  # batches differ, and a run that learns nothing has not diverged


_NOTHING = Curve(np.empty(0), np.empty(0))


@dataclass(frozen=True)
class RunResults:
    """A run folder, read.

    Attributes:
        folder: Where it is.
        name: What to call it.
        settings: Its settings as a flat table, without those that are not set.
        record: What is in `run.json`; may be empty.
        curves: Each numeric key of `metrics.jsonl`.
        samples: Step and text.
        events: Step, and what was done on divergence.
        has_model: Whether the finished model is there.
        standing: Whether a process is at work on it; how it ended otherwise.
        changes: The settings in which it differs from the other runs of its sweep.
        baseline: Whether it is what its sweep compares the others with.
        notes: What in its files is invalid, and omitted here.
    """

    folder: Path
    name: str
    settings: Mapping[str, Any]
    record: Mapping[str, Any]
    curves: Mapping[str, Curve]
    samples: list[tuple[int, str]] = field(default_factory=list)
    events: list[tuple[int, str]] = field(default_factory=list)
    has_model: bool = False
    standing: Standing = UNKNOWN
    changes: Mapping[str, Any] = field(default_factory=dict)
    baseline: bool = False
    notes: list[str] = field(default_factory=list)

    def curve(self, key: str) -> Curve:
        """A curve, empty where nothing was written."""
        return self.curves.get(key, _NOTHING)

    def at(self, key: str, steps: Floats) -> Floats:
        """The values of `tokens` or `seconds` at these steps; NaN where none were recorded."""
        known = self.curve(key)
        return np.interp(steps, known.steps, known.values) if len(known) else np.full(len(steps), np.nan)

    @property
    def last_step(self) -> int:
        """The last step in the metrics."""
        return max((int(curve.steps[-1]) for curve in self.curves.values() if len(curve)), default=0)

    @cached_property
    def status(self) -> Status:
        """How it ended.

        Diverged: the loss at the end is NaN, or the median over some tenth of the run is clearly above the loss of the
        first step. A schedule that decays to 0 brings even such a run back below it in the end.
        """
        if not self.last_step:
            return "empty"
        loss = self.curve("loss")
        if self.final_loss is None or math.isnan(self.final_loss):
            stopped_by_guard = len(loss) > 0 or bool(self.events)
            return "diverged" if stopped_by_guard else "unfinished"
        if len(loss) >= 10 and self.highest_loss > _ABOVE_THE_START * loss.values[0]:
            return "diverged"
        if self.has_model:
            return "finished"
        return "diverged" if any(event.startswith("stopped") for _, event in self.events) else "unfinished"

    @property
    def final_loss(self) -> float | None:
        """Mean training loss of the last tenth of the records; NaN where the last one is NaN."""
        values = self.curve("loss").values
        if not len(values):
            return None
        return float("nan") if math.isnan(values[-1]) else float(np.nanmean(values[-max(1, len(values) // 10) :]))

    @property
    def highest_loss(self) -> float:
        """The highest of the training loss's medians over ten equal parts of the run; NaN where there is none."""
        parts = [part[np.isfinite(part)] for part in np.array_split(self.curve("loss").values, 10)]
        return max((float(np.median(part)) for part in parts if len(part)), default=math.nan)

    def final(self, key: str) -> float | None:
        """The last value of a curve; None where it is NaN."""
        values = self.curve(key).values
        return None if not len(values) or math.isnan(values[-1]) else float(values[-1])

    def best(self, key: str) -> tuple[float, int] | None:
        """The lowest value of a curve, and its step."""
        curve = self.curve(key)
        if not len(curve) or np.isnan(curve.values).all():
            return None
        index = int(np.nanargmin(curve.values))
        return float(curve.values[index]), int(curve.steps[index])

    @property
    def tokens_per_second(self) -> float | None:
        """Median over the logged steps."""
        values = self.curve("tokens_per_second").values
        return float(np.nanmedian(values)) if len(values) and not np.isnan(values).all() else None

    @property
    def seconds_left(self) -> float | None:
        """How long a run at work will take from its last record, evaluations included, at its speed of late."""
        total, tokens, seconds = self.record.get("tokens"), self.curve("tokens"), self.curve("seconds")
        if self.standing.kind != "running" or total is None or min(len(tokens), len(seconds)) < 2:
            return None
        first = max(0, len(tokens) - min(_MOST_RECENT, max(_LEAST_RECENT, len(tokens) // 10)))
        took = float(np.diff(self.at("seconds", tokens.steps[[first, -1]]))[0])
        done = float(tokens.values[-1] - tokens.values[first])
        return max(0.0, (total - float(tokens.values[-1])) * took / done) if done > 0 and took > 0 else None

    @property
    def parameters(self) -> int | None:
        """Number of weights of the model, if it is in `run.json`."""
        return self.record.get("parameters")

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the tokenizer, if it is in `run.json`."""
        fingerprint: str | None = self.record.get("data", {}).get("fingerprint")
        return fingerprint


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run, finished or not."""
    run = RunFolder(folder)
    return run.settings_file.is_file() or run.metrics_file.is_file()


class RunReader:
    """Reads a run folder, also of a run that is in progress, was killed, or never reached its first step.

    Read again, it reads of the metrics only what is new.

    Args:
        folder: Of the run; need not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self.metrics = MetricsTable(RunFolder(folder).metrics_file)
        self._run = RunFolder(folder)
        self._settings = _SmallFile(self._run.settings_file, _read_settings)
        self._record = _SmallFile(self._run.record_file, valid_record)
        self._note: str | None = None

    def update(self) -> bool:
        """Read what is new; whether anything is."""
        before, self._note = self._note, None
        others = [file.update() for file in (self._settings, self._record)]
        try:
            changed = self.metrics.update()
        except OSError as error:
            self._note = f"{self.metrics.path.name}: cannot be read ({error.strerror})"
            changed = False
        return changed or self._note != before or any(others)

    @property
    def standing(self) -> Standing:
        """Where the run stands now."""
        return standing(self._run, self._record.content)

    def results(self, name: str | None = None, *, latest: int | None = None) -> RunResults:
        """What is known of the run as of the last update.

        Args:
            name: What to call it.
            latest: Only so many of the newest values of each curve, which takes no longer the longer the run is.
        """
        run, metrics = self._run, self.metrics
        notes = [] if self._note is None else [self._note]
        if metrics.num_invalid:
            notes.append(f"{metrics.path.name}: {metrics.num_invalid} values are not numbers, or implausibly large")
        return RunResults(
            folder=run.path,
            name=name or run.path.resolve().name,
            settings=self._settings.content,
            record=self._record.content,
            curves={
                key: column.curve(0 if latest is None else max(0, len(column) - latest))
                for key, column in metrics.columns.items()
            },
            samples=list(metrics.samples),
            events=list(metrics.events),
            has_model=(run.model / "ownlm.json").is_file(),
            standing=self.standing,
            notes=[*notes, *self._record.notes, *self._settings.notes],
        )


class _SmallFile:
    """A file that is read again as a whole when it has changed."""

    def __init__(self, path: Path, read: Callable[[Path, list[str]], dict[str, Any]]) -> None:
        self.content: dict[str, Any] = {}
        self.notes: list[str] = []
        self._path, self._read = path, read
        self._seen: object = None

    def update(self) -> bool:
        """Read it if it has changed; whether it has."""
        try:
            status = self._path.stat()
            seen: object = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            seen = "missing"
        if seen == self._seen:
            return False
        self.notes = []
        self.content, self._seen = self._read(self._path, self.notes), seen
        return True


def read_run(folder: Path, *, name: str | None = None) -> RunResults:
    """Read a run folder once."""
    reader = RunReader(folder)
    reader.update()
    return reader.results(name)


def _read_settings(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path.name}: cannot be read ({error})")
        return {}
    return valid_settings(table, path.name, notes)
