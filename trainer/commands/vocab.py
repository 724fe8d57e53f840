"""`vocab`: text to a tokenizer."""

import logging
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from shared.system.stages import no_stage
from trainer.errors import UsageError
from trainer.settings.vocab import VocabSettings

logger = logging.getLogger(__name__)


def vocab(
    files: list[Path],
    *,
    output: Path,
    settings: VocabSettings,
    profile: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Train a byte-level BPE tokenizer on text files.

    Any text can be encoded with any tokenizer; one that was trained on text like yours needs fewer tokens for it. What
    does not fit into the memory limit goes through the disk.

    Args:
        files: UTF-8 text files, plain or compressed as .gz or .zst; .jsonl and .parquet files; directories of these;
            globs in quotes; or - for standard input.
        output: Directory for the tokenizer.
        settings: How it is trained.
        profile: Write where time and memory went to profile.txt and profile.json in the output directory.
    """
    from trainer.console.progress import progress
    from trainer.runs.profile import Profile
    from trainer.storage.remote import display_path, url_of
    from trainer.text.sources import total_size
    from trainer.tokenizer.train import train_tokenizer

    if profile and url_of(output) is not None:
        raise UsageError("--profile writes beside the tokenizer, which must be on this machine then")
    begin = time.monotonic()
    measured = Profile("vocab", "bytes") if profile else None
    with progress() as new_bar:
        reading = new_bar("reading", total_size(files))
        merging = new_bar("merging", max(0, settings.vocab_size - 256 - len(settings.special_token)))
        report = train_tokenizer(
            files,
            output,
            settings,
            stage=measured.stage if measured else no_stage,
            progress=reading,
            merge_progress=lambda done, _: merging(done),
        )
    if measured:
        logger.info("%s", measured.write(output, report.bytes_read))
    if report.reached_size < report.requested_size:
        logger.warning(
            "the text has too few pairs for %s tokens: stopped at %s",
            f"{report.requested_size:,}",
            f"{report.reached_size:,}",
        )
    if report.training.replaced_bytes:
        logger.warning("%s U+FFFD characters replace bytes that are not UTF-8", f"{report.training.replaced_bytes:,}")
    for line in report.lines():
        logger.info("%s", line)
    logger.info("%s: %s tokens in %.1f s", display_path(output), f"{report.reached_size:,}", time.monotonic() - begin)
