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
    """The runs in run folders, sweep folders, or any folders of runs.

    Raises:
        UsageError: there is no run in one of them.
    """
    folders = [folder for path in paths for folder in _run_folders(path)]
    folders = list({folder.resolve(): folder for folder in folders}.values())
    return in_sweeps([read_run(folder, name=name) for folder, name in run_names(folders).items()])


def run_names(folders: Sequence[Path]) -> dict[Path, str]:
    """A name of its own for each folder: the last part of its path, with as many before it as it takes."""
    names: dict[Path, str] = {}
    parts = {folder: folder.resolve().parts for folder in folders}
    for folder, own in parts.items():
        same = [other for each, other in parts.items() if each is not folder and other[-1:] == own[-1:]]
        count = next((n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in same)), len(own))
        names[folder] = "/".join(own[-count:])
    return names


def in_sweeps(runs: Sequence[RunResults]) -> list[RunResults]:
    """The same runs, with what the sweeps that they belong to say of them."""
    sweeps: dict[Path, tuple[dict[str, Outcome], list[str]]] = {}
    found = []
    for run in runs:
        whole = run.folder.resolve()
        sweep = whole.parent
        if sweep not in sweeps:
            notes: list[str] = []
            sweeps[sweep] = read_outcomes(sweep, notes), notes
        outcomes, notes = sweeps[sweep]
        if whole.name in outcomes:
            outcome = outcomes[whole.name]
            changes = valid_settings(outcome.changes, FILE, run.notes)
            found.append(dataclasses.replace(run, changes=changes, baseline=bool(outcome.baseline)))
        else:
            run.notes.extend(notes)
            found.append(run)
    return found


def _run_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder")
    inside = folders_of_runs(path)
    if not inside and not has_profile(path):
        raise UsageError(
            f"{path} is not a run folder and contains none: expected a train.toml or metrics.jsonl, or a profile.json "
            "that --profile wrote"
        )
    return inside


def folders_of_runs(path: Path) -> list[Path]:
    """The run folders that a path stands for: itself, or those in it, ordered by the numbers in their names."""
    if is_run(path):
        return [path]
    if not path.is_dir():
        return []
    try:
        inside = list(path.iterdir())
    except OSError:  # removed meanwhile, or not to be read
        return []
    return sorted((folder for folder in inside if folder.is_dir() and is_run(folder)), key=_natural)


def _natural(path: Path) -> list[tuple[bool, float, str]]:
    """Orders names by the numbers in them: rate=3e-4 before rate=0.001."""
    parts = _NUMBER.split(path.name)
    return [(True, float(part), "") if place % 2 else (False, 0.0, part) for place, part in enumerate(parts)]
