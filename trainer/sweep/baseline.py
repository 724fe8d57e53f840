"""Variants beside their baseline."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Compared:
    """A run as it is compared with its baseline: what sets it apart, whether it is one, and its validation loss."""

    changes: Mapping[str, Any]
    baseline: bool
    loss: float | None


def differences(runs: Iterable[Compared]) -> list[str]:
    """The validation loss of each run less its baseline's, to show; "baseline" for one, empty where there is no loss.

    The baseline of a run has the same changes except for the run's switch, so the same learning rate and seed where
    those vary too.
    """
    runs = list(runs)
    baselines = sorted((run for run in runs if run.baseline), key=lambda run: -len(run.changes))

    def shown(run: Compared) -> str:
        if run.baseline:
            return "baseline"
        own = (b for b in baselines if all(run.changes.get(key, ...) == b.changes[key] for key in b.changes))
        baseline = next(own, None)
        if baseline is None or baseline.loss is None or run.loss is None:
            return ""
        return f"{run.loss - baseline.loss:+.4f}"

    return [shown(run) for run in runs]
