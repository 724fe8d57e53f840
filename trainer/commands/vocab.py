"""`vocab`: text to a tokenizer."""

import logging
import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

logger = logging.getLogger(__name__)


def vocab(
    files: list[Path],
    *,
    vocab_size: int,
    output: Path,
    special_token: Annotated[tuple[str, ...], Parameter(negative="--no-special-token")] = ("<|endoftext|>",),
    pattern: str = "gpt2",
    min_count: int = 1,
    text_field: str = "text",
    errors: Literal["strict", "replace"] = "strict",
    held_out: str | None = None,
    threads: int | None = None,
    memory_limit: str | None = None,
    overwrite: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Learn a byte-level BPE vocabulary from text files.

    Any text can be encoded with any vocabulary; a vocabulary learnt from text like yours needs fewer tokens for it.

    Args:
        files: UTF-8 text files, plain or packed as .gz or .zst; .jsonl and .parquet files; folders of these; globs in
            quotes; or - for standard input.
        vocab_size: Tokens wanted, the 256 bytes and the special tokens included. 1,024 suits a toy language, 4,096 to
            8,192 a model of some million parameters on simple text, 32,768 one of 100 million on everything. More means
            fewer tokens a text, and a larger embedding.
        output: Folder for the tokenizer.
        special_token: A token with a meaning of its own, never part of a text; give the option once for each. Keep
            `<|endoftext|>`, which ends documents.
        pattern: How text is cut before pairs are counted: `gpt2`, `cl100k`, `o200k`, `llama3`, `qwen`, or a regular
            expression, read as Hugging Face's tokenizers reads it. `gpt2` is right for English; `o200k` keeps more
            languages and long numbers in good shape.
        min_count: Leave out words that occur less often: rare ones take most of the memory, and teach little.
        text_field: Field of JSON lines, or column of parquet files, that holds the text.
        errors: `strict` stops at bytes that are not UTF-8; `replace` makes U+FFFD of them, and counts them.
        held_out: Text that is not learnt from, to measure how well text of its kind is compressed: a file, or a size,
            such as 1M, that is taken from the beginnings of the files, in the order of their names. If not given, 1M of
            32M of files or more, and nothing of fewer; 0 learns from everything.
        threads: Threads that count. As many as there are cores, if not given.
        memory_limit: Memory that may be used, such as 500M or 8G. Half of the machine's, if not given. What does not
            fit goes through the disk.
        overwrite: Replace a tokenizer that is in the output folder.
    """
    from trainer.console.progress import progress
    from trainer.text.sources import parse_limit, total_size
    from trainer.tokenizer.held_out import parse_held_out
    from trainer.tokenizer.vocabulary import learn_vocabulary

    begin = time.monotonic()
    with progress() as new_bar:
        reading = new_bar("reading", total_size(files))
        merging = new_bar("merging", max(0, vocab_size - 256 - len(special_token)))
        report = learn_vocabulary(
            files,
            output,
            vocab_size=vocab_size,
            special_tokens=special_token,
            pattern=pattern,
            min_count=min_count,
            text_field=text_field,
            errors=errors,
            held_out=parse_held_out(held_out, files),
            threads=threads,
            memory_limit=parse_limit(memory_limit),
            overwrite=overwrite,
            progress=reading,
            merge_progress=lambda done, _: merging(done),
        )
    if report.reached_size < report.requested_size:
        logger.warning(
            "the text has too few pairs for %s tokens: stopped at %s",
            f"{report.requested_size:,}",
            f"{report.reached_size:,}",
        )
    if report.training.replaced_bytes:
        logger.warning(
            "%s characters were put in place of bytes that are not UTF-8", f"{report.training.replaced_bytes:,}"
        )
    for line in report.lines():
        logger.info("%s", line)
    logger.info("%s: %s tokens in %.1f s", output, f"{report.reached_size:,}", time.monotonic() - begin)
