"""`evaluations.json` of a model folder: results on questions, written by `evaluate --record`.

The page /model of the inference service and the model card show them. Its parts are in docs/reference/files.md. It
decides nothing, is not in `checksums.json`, and one that cannot be used counts as none.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from shared.lm.errors import ModelFolderError
from shared.lm.json_file import read_json
from shared.system.checksums import EVALUATIONS_FILE

EVALUATIONS_FILE_VERSION = 1
MAX_EVALUATIONS = 32
_LONGEST_NAME = 600  # two names of a file system, in UTF-8


class RecordedMetric(NamedTuple):
    """A metric of a file.

    Attributes:
        file: The name of the file and of its folder.
        format: As `evaluate` names it.
        questions: How many were asked.
        metric: Its name.
        value: Its value.
        stderr: Its standard error; None where there is none.
    """

    file: str
    format: str
    questions: int
    metric: str
    value: float
    stderr: float | None


def read_evaluations(folder: Path) -> list[RecordedMetric]:
    """The metrics of a folder, which may come from anywhere: what is not in the documented form is left out."""
    try:
        content = read_json(folder / EVALUATIONS_FILE, optional=True)
    except ModelFolderError:
        return []
    tasks = content.get("tasks")
    if content.get("format_version") != EVALUATIONS_FILE_VERSION or not isinstance(tasks, list):
        return []
    return [metric for task in tasks[:MAX_EVALUATIONS] if isinstance(task, Mapping) for metric in _metrics(task)]


def _metrics(task: Mapping[str, Any]) -> list[RecordedMetric]:
    file, file_format, questions, metrics = (task.get(name) for name in ("file", "format", "questions", "metrics"))
    if not (_is_name(file) and _is_name(file_format) and type(questions) is int and isinstance(metrics, Mapping)):
        return []
    return [
        RecordedMetric(file, file_format, questions, name, value, stderr)
        for name, metric in metrics.items()
        if isinstance(metric, Mapping)
        for value, stderr in [(metric.get("value"), metric.get("stderr"))]
        if _is_name(name) and _is_number(value) and (stderr is None or _is_number(stderr))
    ]


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= _LONGEST_NAME


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
