"""`evaluate-tokenizers`: how well and how fast tokenizers encode text."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def evaluate_tokenizers(
    texts: list[Path],
    *,
    tokenizer: list[Path],
    max_size: str = "64M",
    separator: str = "<|endoftext|>",
    no_separator: Annotated[bool, Parameter(negative="")] = False,
    text_field: str = "text",
    errors: Literal["strict", "replace"] = "strict",
    threads: int | None = None,
    memory_limit: str | None = None,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Compare tokenizers on texts: compression, use of the vocabulary and speed, every one on every text.

    More bytes a token mean that a model sees more text in its context, and takes fewer steps to read or write it. A
    vocabulary learnt from other text than yours shows in the comparison with one learnt from yours.

    Args:
        texts: What each is encoded: files, folders, globs in quotes, or -, as for `encode`; a table for each.
        tokenizer: A folder that `vocab` wrote or a model folder, a tokenizer.json, GPT-2's vocab.json, or a rank file
            of tiktoken's, such as cl100k_base.tiktoken; give the option once for each. The first is what the others are
            compared with.
        max_size: Encode the beginning of each text only, up to this size. Documents are held in memory.
        separator: What stands between documents in text files; it is not counted.
        no_separator: Take each text file as one document.
        text_field: Field of JSON lines, or column of parquet files, that holds the text.
        errors: `strict` stops at bytes that are not UTF-8; `replace` makes U+FFFD of them.
        threads: Threads that encode. As many as there are cores, if not given.
        memory_limit: Memory that may be used, such as 500M or 8G. Half of the machine's, if not given. A document may
            have about a hundredth of it; longer ones are refused.
        json_output: Print JSON instead of tables.
    """
    from trainer.console.progress import progress
    from trainer.console.tables import print_table
    from trainer.errors import UsageError
    from trainer.text.sources import parse_limit, parse_size
    from trainer.tokenizer.comparison import compare_tokenizers
    from trainer.tokenizer.comparison_report import to_json, to_tables

    if not separator:
        raise UsageError("the separator is empty; --no-separator makes each text file one document")
    with progress() as new_bar:
        results = compare_tokenizers(
            tokenizer,
            texts,
            separator=None if no_separator else separator,
            text_field=text_field,
            errors=errors,
            max_bytes=parse_size(max_size),
            threads=threads,
            memory_limit=parse_limit(memory_limit),
            new_bar=new_bar,
        )
    if json_output:
        sys.stdout.write(json.dumps(to_json(results), indent=2) + "\n")
        return
    for table in to_tables(results):
        print_table(table)
