"""The results of tasks, as a table and as JSON."""

import math
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from shared.system.errors import escape_unprintable
from trainer.evaluation.tasks.evaluate import TaskReport, TaskResult


def to_json(report: TaskReport) -> dict[str, Any]:
    """The report as JSON values; null where there is no value."""
    return {
        "model": str(report.folder.path),
        "fingerprint": report.folder.tokenizer.fingerprint,
        "parameters": report.folder.config.num_parameters,
        "device": str(report.device),
        "limit": report.settings.limit,
        "shots": report.settings.shots,
        "chat": report.settings.apply_chat_template,
        "tasks": [{"file": str(result.path), **result_to_json(result)} for result in report.results],
    }


def result_to_json(result: TaskResult) -> dict[str, Any]:
    """The result of a file, without its path."""
    return {
        "format": result.format.name,
        "questions": result.work.items,
        "cut": result.work.cut,
        "seconds": round(result.seconds, 3),
        "metrics": {
            name: {"value": _finite(value), "stderr": _finite(stderr)}
            for name, (value, stderr) in result.metrics.items()
        },
    }


def to_table(report: TaskReport) -> Group:
    """The report as a table with a row for each metric of each file, and how it was made below it."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("file", overflow="fold")
    table.add_column("format")
    for name in ("questions", "metric", "value", "± stderr"):
        table.add_column(name, justify="left" if name == "metric" else "right")
    for result in report.results:
        heads = (escape_unprintable(str(result.path)), result.format.name, f"{result.work.items:,}")
        for name, (value, stderr) in result.metrics.items():
            table.add_row(*heads, name, _cell(value), _cell(stderr))
            heads = ("", "", "")
    seconds = sum(result.seconds for result in report.results)
    tokens = sum(result.work.tokens for result in report.results)
    rules = f"{report.settings.shots} examples before each question" + (
        ", by the chat template" if report.settings.apply_chat_template else ""
    )
    caption = f"{rules}\n{report.device}: {seconds:.1f} s, {tokens / max(seconds, 1e-9):,.0f} tokens/s"
    return Group(table, Text(caption, style="dim"))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _cell(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.4f}" if value < 1e6 else f"{value:.4g}"
