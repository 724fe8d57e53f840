"""A run folder read back: settings, curves, samples, and how the run ended. For sweeps and reports; needs no torch."""

import math
import tomllib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainer.runs.folder import RunFolder
from trainer.runs.json_types import has_type, valid_settings
from trainer.runs.metrics import read_metrics
from trainer.runs.record import valid_record

Status = Literal["finished", "diverged", "unfinished", "empty"]
Floats = npt.NDArray[np.float64]

_LAST_STEP = 1 << 53  # beyond, a float64 cannot distinguish neighbors
_ABOVE_THE_START = 1.05  # batches differ, and a run that learns nothing has not diverged


@dataclass(frozen=True)
class Curve:
    """One value over the steps; NaN where it was not a finite number.

    Attributes:
        steps: [points], increasing.
        values: [points].
    """

    steps: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.steps)


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


def read_run(folder: Path, *, name: str | None = None) -> RunResults:
    """Read a run folder, also of a run that is in progress, was killed, or never reached its first step."""
    run = RunFolder(folder)
    notes: list[str] = []
    numbers: dict[str, tuple[array[float], array[float]]] = {}
    samples, events = [], []
    num_invalid = 0
    for record in _records(run.metrics_file, notes):
        step = record.pop("step")
        if not has_type(step, int) or not 0 <= step <= _LAST_STEP:
            num_invalid += 1
            continue
        for key, value in record.items():
            if key == "sample":
                samples.append((step, str(value)))
            elif key == "event":
                events.append((step, str(value)))
            elif has_type(value, (None, float)):
                steps, values = numbers.setdefault(key, (array("d"), array("d")))
                steps.append(step)
                values.append(math.nan if value is None else value)
            else:
                num_invalid += 1
    if num_invalid:
        notes.append(f"{run.metrics_file.name}: {num_invalid} values are not numbers, or implausibly large")
    return RunResults(
        folder=folder,
        name=name or folder.resolve().name,
        settings=_settings(run.settings_file, notes),
        record=valid_record(run.record_file, notes),
        curves={key: _curve(*columns) for key, columns in numbers.items()},
        samples=samples,
        events=events,
        has_model=(run.model / "ownlm.json").is_file(),
        notes=notes,
    )


def _records(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    try:
        yield from read_metrics(path)
    except FileNotFoundError:
        return
    except OSError as error:
        notes.append(f"{path.name}: cannot be read ({error.strerror})")


def _curve(steps: "array[float]", values: "array[float]") -> Curve:
    """Sorted by step; of several records of a step, the last one is used."""
    all_steps, all_values = np.array(steps), np.array(values)
    if (np.diff(all_steps) > 0).all():
        return Curve(all_steps, all_values)
    _, from_the_end = np.unique(all_steps[::-1], return_index=True)
    kept = len(all_steps) - 1 - from_the_end
    return Curve(all_steps[kept], all_values[kept])


def _settings(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path.name}: cannot be read ({error})")
        return {}
    return valid_settings(table, path.name, notes)
