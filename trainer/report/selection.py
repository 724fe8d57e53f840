"""The runs of a report."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import UsageError
from trainer.report.profiles import has_profile
from trainer.runs.json_types import valid_settings
from trainer.runs.results import RunResults, is_run, read_run
from trainer.sweep.record import FILE, Outcome, read_outcomes

_NUMBER = re.compile(r"(\d+\.?\d*(?:e[-+]?\d+)?)")


def read_runs(paths: Sequence[Path]) -> list[RunResults]:
    """The runs in run folders, sweep folders, or any folders of runs; each has a name of its own.

    Raises:
        UsageError: there is no run in one of them.
    """
    folders = [folder for path in paths for folder in _run_folders(path)]
    folders = list({folder.resolve(): folder for folder in folders}.values())
    names = [folder.resolve().name for folder in folders]
    sweeps: dict[Path, tuple[dict[str, Outcome], list[str]]] = {}
    runs = []
    for folder, short in zip(folders, names, strict=True):
        whole = folder.resolve()
        name = short if names.count(short) == 1 else f"{whole.parent.name}/{short}"
        run = read_run(folder, name=name)
        sweep = whole.parent
        if sweep not in sweeps:
            notes: list[str] = []
            sweeps[sweep] = read_outcomes(sweep, notes), notes
        outcomes, notes = sweeps[sweep]
        if short in outcomes:
            changes = valid_settings(outcomes[short].changes, FILE, run.notes)
            run = dataclasses.replace(run, changes=changes, baseline=bool(outcomes[short].baseline))
        else:
            run.notes.extend(notes)
        runs.append(run)
    return runs


def _run_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder")
    if is_run(path):
        return [path]
    inside = sorted((folder for folder in path.iterdir() if folder.is_dir() and is_run(folder)), key=_natural)
    if not inside and not has_profile(path):
        raise UsageError(
            f"{path} is not a run folder and contains none: expected a train.toml or metrics.jsonl, or a profile.json "
            "that --profile wrote"
        )
    return inside


def _natural(path: Path) -> list[tuple[bool, float, str]]:
    """Orders names by the numbers in them: rate=3e-4 before rate=0.001."""
    parts = _NUMBER.split(path.name)
    return [(True, float(part), "") if place % 2 else (False, 0.0, part) for place, part in enumerate(parts)]
