"""Results in the model's folder, for its page and its card."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shared.lm.errors import ModelFolderError
from shared.lm.evaluations_file import EVALUATIONS_FILE_VERSION, MAX_EVALUATIONS
from shared.lm.json_file import read_json
from shared.system.checksums import EVALUATIONS_FILE
from shared.system.files import to_json, write_text
from trainer.card.questions import renew_questions
from trainer.errors import UsageError
from trainer.evaluation.tasks.evaluate import TaskReport
from trainer.evaluation.tasks.tables import result_to_json


def check_recordable(model: Path) -> None:
    """Refuse, before anything is scored, a folder that `record` could not write to.

    Raises:
        UsageError: If it is one.
    """
    if model.is_dir() and not os.access(model, os.W_OK):
        raise UsageError(f"{model} is not writable, so results cannot be saved; omit --record")


def record(report: TaskReport) -> None:
    """Add results to `evaluations.json`, in place of earlier ones on files of the same names; renew our card.

    Raises:
        OSError: If they cannot be written.
    """
    file = report.folder.path / EVALUATIONS_FILE
    try:
        earlier = read_json(file, optional=True).get("tasks")
    except ModelFolderError:
        earlier = None
    if not isinstance(earlier, list):  # the file is ours to write, and what cannot be read is of no use
        earlier = []
    new = [_entry(report, number) for number in range(len(report.results))]
    names = {entry["file"] for entry in new}
    old = [entry for entry in earlier if isinstance(entry, dict) and entry.get("file") not in names]
    content = {"format_version": EVALUATIONS_FILE_VERSION, "tasks": (old + new)[-MAX_EVALUATIONS:]}
    write_text(file, to_json(content))
    renew_questions(report.folder.path)


def _entry(report: TaskReport, number: int) -> dict[str, Any]:
    result, settings = report.results[number], report.settings
    entry = {
        "file": "/".join(result.path.resolve().parts[-2:]),  # data sets have files of the same names
        **result_to_json(result),
        "device": str(report.device),
        "evaluated": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if settings.apply_chat_template:
        entry["chat"] = True
    if settings.shots:
        entry["shots"] = settings.shots
    if result.format.kind == "answer":
        names = ("prompt", "stop", "max_answer_tokens", "extract", "ignore", "ignore_case", "ignore_punctuation")
        entry["settings"] = {name: getattr(settings, name) for name in names}
    return entry
