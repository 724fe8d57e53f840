"""`clean`: a corpus without duplicates and without what the user's filters refuse."""

import logging
import time
from pathlib import Path

from trainer.settings.clean import CleanSettings

logger = logging.getLogger(__name__)

_DEFAULTS = CleanSettings()


def clean(files: list[Path], *, output: Path, report: Path | None = None, settings: CleanSettings = _DEFAULTS) -> None:
    """Clean text before training: drop duplicates, near-duplicates, and what your own filters refuse.

    The documents that stay go to part-00000.jsonl, ... in the output directory, which `vocab` and `encode` read. Of
    documents that are alike the first one stays. Filters are applied first. If the command is interrupted, the same
    command continues.

    Args:
        files: As in `encode`; each is read twice.
        output: Directory for the documents that stay, and for cleaning.json: how many left and why.
        report: Write that also as a page, FILE.html, or as FILE.json.
        settings: Which documents stay, and how text is read.
    """
    from trainer.cleaning.clean import clean_files
    from trainer.cleaning.report import check_report, write_report
    from trainer.console.progress import progress
    from trainer.storage.remote import display_path

    begin = time.monotonic()
    if report is not None:
        check_report(report)
    with progress() as new_bar:
        result = clean_files(files, output, settings, new_bar)
    if report is not None:
        write_report(result, report)
    for name, count in result.rows():
        logger.info("%s: %s documents, %s bytes", name, f"{count.documents:,}", f"{count.bytes:,}")
    logger.info("%s: %.1f s", display_path(output), time.monotonic() - begin)
