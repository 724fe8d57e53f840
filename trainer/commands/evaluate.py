"""`evaluate`: how well a model predicts text."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from trainer.errors import UsageError
from trainer.settings.evaluation import EvaluateSettings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainer.console.progress import NewBar

_DEFAULTS = EvaluateSettings()


def evaluate(
    model: Path,
    inputs: list[Path] | None = None,
    *,
    settings: EvaluateSettings = _DEFAULTS,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Score text with a model (loss, perplexity, bits per byte, by source), or run question-answering tasks.

    Bits per byte compare models of different tokenizers; loss and perplexity only those of the same. How documents are
    split into windows changes the figures: compare only figures with the same settings;
    they are printed below the table. With --tasks: accuracy on published files of questions.
    `evaluate-tokenizers` compares tokenizers without a model.

    Args:
        model: A model directory: runs/first/model, any of a run's checkpoints, or one from elsewhere.
        inputs: UTF-8 text files, plain or compressed as .gz or .zst; .jsonl and .parquet files, each record of which is
            a document; directories of these; globs in quotes; - for standard input; or token files, such as
            tokens/val.json. Of conversations (--chat, or token files of them) the assistant's answers are scored. None
            with --tasks.
        settings: What is scored, and how.
        json_output: Print JSON instead of a table.
    """
    from shared.system.allocation import keep_freed_memory
    from trainer.console.progress import progress
    from trainer.console.tables import print_table

    keep_freed_memory()
    with progress() as new_bar:
        values, table = (_tasks if settings.questions.tasks else _texts)(model, inputs or [], settings, new_bar)
    if json_output:
        sys.stdout.write(json.dumps(values, indent=2, allow_nan=False) + "\n")
    else:
        print_table(table)


def _texts(
    model: Path, inputs: list[Path], settings: EvaluateSettings, new_bar: "NewBar"
) -> "tuple[dict[str, Any], RenderableType]":
    from trainer.evaluation.evaluate import evaluate_inputs
    from trainer.evaluation.tables import to_json, to_table

    report = evaluate_inputs(model, inputs, settings, new_bar)
    return to_json(report), to_table(report)


def _tasks(
    model: Path, inputs: list[Path], settings: EvaluateSettings, new_bar: "NewBar"
) -> "tuple[dict[str, Any], RenderableType]":
    from trainer.evaluation.tasks.evaluate import evaluate_tasks
    from trainer.evaluation.tasks.recording import check_recordable, record
    from trainer.evaluation.tasks.tables import to_json, to_table

    if inputs:
        raise UsageError(f"--tasks takes questions instead of texts: leave out {inputs[0]}, or evaluate it by itself")
    if settings.questions.record:
        check_recordable(model)
    report = evaluate_tasks(model, settings, new_bar)
    if settings.questions.record:
        record(report)
    return to_json(report), to_table(report)
