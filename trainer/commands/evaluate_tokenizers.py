"""`evaluate-tokenizers`: how well and how fast tokenizers encode text."""

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trainer.settings.tokenizer_comparison import ComparisonSettings

_DEFAULTS = ComparisonSettings()


def evaluate_tokenizers(
    texts: list[Path],
    *,
    tokenizer: list[Path],
    settings: ComparisonSettings = _DEFAULTS,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Compare tokenizers on texts: compression, use of the vocabulary and speed, every one on every text.

    Then their vocabularies: the longest tokens of each, and how many tokens and merges every two of them share.
    More bytes per token mean that a model sees more text in its context, and takes fewer steps to read or write it.
    Include a tokenizer trained on text like yours: it shows how much better a tokenizer for your text would be.

    Args:
        texts: What is encoded: files, directories, globs in quotes, or -, as for `encode`; a table for each.
        tokenizer: A directory that `vocab` wrote, a model directory, a tokenizer.json, GPT-2's vocab.json, or a
            tiktoken rank file such as cl100k_base.tiktoken; give the option once for each. The others are compared with
            the first.
        settings: What is encoded, and how text is read.
        json_output: Print JSON instead of tables.
    """
    from trainer.console.progress import progress
    from trainer.console.tables import print_table
    from trainer.tokenizer.comparison import compare_tokenizers
    from trainer.tokenizer.comparison_tables import to_json, to_tables

    with progress() as new_bar:
        results = compare_tokenizers(tokenizer, texts, settings, new_bar)
    if json_output:
        sys.stdout.write(json.dumps(to_json(results), indent=2) + "\n")
        return
    for table in to_tables(results):
        print_table(table)
