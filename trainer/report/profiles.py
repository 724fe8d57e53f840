"""Where time and memory went, as `--profile` of `train`, `vocab` and `encode` wrote it, for a page."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.system.regular_file import LARGEST_RECORD, read_regular
from trainer.runs.json_types import has_type
from trainer.runs.profile import PROFILE_FILE
from trainer.runs.profile_text import NOTES, Cells, operator_cells, stage_cells, summary_lines
from trainer.runs.results import RunResults, is_run

_FLOAT_OR_NULL = (None, float)
_STAGE = {
    "name": str,
    **dict.fromkeys(("calls", "amount", "peak_memory"), int),
    **dict.fromkeys(("share", "seconds", "device_seconds", "processor_seconds"), float),
    "per_second": _FLOAT_OR_NULL,
}
_JOB = {
    **dict.fromkeys(("job", "unit"), str),
    **dict.fromkeys(("amount", "threads", "peak_memory"), int),
    **dict.fromkeys(("seconds", "per_second", "processor_seconds"), float),
    "stages": [_STAGE],
}
_OPERATOR = {
    "name": str,
    "calls": int,
    **dict.fromkeys(("share", "seconds", "device_seconds", "total_seconds", "memory"), float),
}
_MEMORY = ("parameters", "gradients", "optimizer state", "activations", "temporary", "allocator", "program")
_TRAINING = {
    **dict.fromkeys(("device", "traced"), str),
    **dict.fromkeys(("processes", "steps", "measured_steps"), int),
    **dict.fromkeys(("tokens_per_second", "flops_per_second", "matmul_flops_per_second"), _FLOAT_OR_NULL),
    "device_peak_memory": _FLOAT_OR_NULL,
    "estimated_memory": dict.fromkeys(_MEMORY, int),
    "operators": [_OPERATOR],
}


@dataclass(frozen=True)
class JobProfile:
    """A profile for the page; its texts are ready to show.

    Attributes:
        name: Of the run, or of the folder.
        summary: The job as a whole.
        stages: Where time and memory went.
        shares: Of each stage, from 0 to 1.
        traced: Which steps were, if that is a run's.
        operators: Of the trace.
        notes: How to read the stages.
    """

    name: str
    summary: list[str]
    stages: Cells
    shares: list[float]
    traced: str
    operators: Cells
    notes: Sequence[str] = NOTES


def has_profile(folder: Path) -> bool:
    """Whether a job wrote its profile there."""
    return (folder / PROFILE_FILE).is_file()


def read_profiles(paths: Sequence[Path], runs: Sequence[RunResults], notes: list[str]) -> list[JobProfile]:
    """The profiles of the runs, and those in folders that are no runs.

    Args:
        paths: Those of the command line.
        runs: That were found in them.
        notes: Gets a line for each that cannot be shown.
    """
    others = [(path, path.resolve().name) for path in paths if not is_run(path)]
    folders = [*((run.folder, run.name) for run in runs), *others]
    found = (_read(folder, name, notes) for folder, name in folders if has_profile(folder))
    return [profile for profile in found if profile is not None]


def _read(folder: Path, name: str, notes: list[str]) -> JobProfile | None:
    try:
        content = json.loads(read_regular(folder / PROFILE_FILE, LARGEST_RECORD))
    except (OSError, ValueError, RecursionError):
        content = None
    if not _is_profile(content):
        notes.append(f"{name}: {PROFILE_FILE} is damaged")
        return None
    return JobProfile(
        name,
        summary_lines(content),
        stage_cells(content),
        [min(1.0, max(0.0, use["share"])) for use in content["stages"]],
        content.get("traced", ""),
        operator_cells(content.get("operators", [])),
    )


def _is_profile(content: Any) -> bool:
    """Whether all is there that is shown, with its types."""
    if not has_type(content, _JOB):
        return False
    is_training = any(name in content for name in _TRAINING)
    return not is_training or (all(name in content for name in _TRAINING) and has_type(content, _TRAINING))
