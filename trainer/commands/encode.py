"""`encode`: text to token files."""

import logging
import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

logger = logging.getLogger(__name__)


def encode(
    files: list[Path],
    *,
    tokenizer: Path,
    output: Path,
    split: str = "train",
    val_fraction: float | None = None,
    separator: str = "<|endoftext|>",
    no_separator: Annotated[bool, Parameter(negative="")] = False,
    text_field: str = "text",
    errors: Literal["strict", "replace"] = "strict",
    threads: int | None = None,
    memory_limit: str | None = None,
    resume: Annotated[bool, Parameter(negative="")] = False,
    overwrite: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Encode text files into the token files that `train` reads.

    The tokenizer is saved beside them, so that the output folder is all that `train` needs. Ctrl-C saves what was done,
    and the same command with --resume goes on from there.

    Args:
        files: UTF-8 text files, plain or packed as .gz or .zst; .jsonl and .parquet files, each record of which is a
            document; folders of these; globs in quotes; or - for standard input. Read in order.
        tokenizer: Folder that `vocab` wrote, or a tokenizer.json from elsewhere.
        output: Folder for the token files.
        split: What the text is for: `train`, or `val` for a validation file of its own.
        val_fraction: Instead of a split of your own: send this share of the documents to `val` and the rest to
            `train`. 0.01 to 0.1; a hundred documents are enough. Where none falls to `val`, since there are few, it
            gets this share of the text from its end.
        separator: Special token that stands between documents in the files.
        no_separator: Take each file as one document, and nothing in it as special.
        text_field: Field of JSON lines, or column of parquet files, that holds the text.
        errors: `strict` stops at bytes that are not UTF-8; `replace` makes U+FFFD of them, and counts them.
        threads: Threads that encode. As many as there are cores, if not given.
        memory_limit: Memory that may be used, such as 500M or 8G. Half of the machine's, if not given. A line of JSON,
            a record, or text with no blank may have about a hundredth of it; longer ones are refused.
        resume: Go on from where Ctrl-C, a full disk or a crash stopped the same command.
        overwrite: Replace token files that are in the output folder, and what an interrupted run left there.
    """
    from shared.bpe import Tokenizer
    from trainer.console.progress import progress
    from trainer.text.sources import parse_limit, total_size
    from trainer.tokens.encode import encode_files

    begin = time.monotonic()
    with progress() as new_bar:
        report = encode_files(
            files,
            Tokenizer.from_files(tokenizer),
            output,
            separator=None if no_separator else separator,
            split=split,
            val_fraction=val_fraction,
            text_field=text_field,
            errors=errors,
            threads=threads,
            memory_limit=parse_limit(memory_limit),
            resume=resume,
            overwrite=overwrite,
            progress=new_bar("encoding", total_size(files)),
        )
    for name, manifest in report.manifests.items():
        logger.info(
            "%s: %s tokens in %s documents, %.2f bytes a token",
            output / f"{name}.bin",
            f"{manifest.count:,}",
            f"{manifest.documents:,}",
            manifest.bytes / manifest.count,
        )
    if report.end_is_held_out:
        logger.info(
            "there are too few documents to hold out whole ones: %s is the end of the text, from a line's end on where "
            "one is near",
            output / "val.bin",
        )
    if report.replaced:
        logger.warning("%s characters were put in place of bytes that are not UTF-8", f"{report.replaced:,}")
    logger.info("%s bytes in %.1f s", f"{report.bytes_read:,}", time.monotonic() - begin)
