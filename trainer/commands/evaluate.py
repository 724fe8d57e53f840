"""`evaluate`: how well a model predicts text."""

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trainer.settings.evaluation import EvaluateSettings

_DEFAULTS = EvaluateSettings()


def evaluate(
    model: Path,
    inputs: list[Path],
    *,
    settings: EvaluateSettings = _DEFAULTS,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Score text with a model: loss, perplexity and bits per byte, in total and for each source.

    Bits per byte compare models of different tokenizers; loss and perplexity only those of the same. How documents are
    split into windows changes the figures: compare only figures with the same settings;
    they are printed below the table.
    `evaluate-tokenizers` compares tokenizers without a model.

    Args:
        model: A model directory: runs/first/model, any of a run's checkpoints, or one from elsewhere.
        inputs: UTF-8 text files, plain or compressed as .gz or .zst; .jsonl and .parquet files, each record of which is
            a document; directories of these; globs in quotes; - for standard input; or token files, such as
            tokens/val.bin. Of conversations (--chat, or token files of them) the assistant's answers are scored.
        settings: What is scored, and how.
        json_output: Print JSON instead of a table.
    """
    from shared.system.allocation import keep_freed_memory
    from trainer.console.progress import progress
    from trainer.console.tables import print_table
    from trainer.evaluation.evaluate import evaluate_inputs
    from trainer.evaluation.tables import to_json, to_table

    keep_freed_memory()
    with progress() as new_bar:
        report = evaluate_inputs(model, inputs, settings, new_bar)
    if json_output:
        sys.stdout.write(json.dumps(to_json(report), indent=2, allow_nan=False) + "\n")
    else:
        print_table(to_table(report))
