"""`encode`: text to token files."""

import logging
import time
from pathlib import Path

from trainer.settings.encode import EncodeSettings

logger = logging.getLogger(__name__)

_DEFAULTS = EncodeSettings()


def encode(files: list[Path], *, tokenizer: Path, output: Path, settings: EncodeSettings = _DEFAULTS) -> None:
    """Encode text files into the token files that `train` reads.

    The tokenizer is saved beside them, so that the output directory is all that `train` needs. If the command is
    interrupted, the same command with --resume continues after the last input file that was encoded completely.

    Args:
        files: UTF-8 text files, plain or compressed as .gz or .zst; .jsonl and .parquet files, each record of which is
            a document; directories of these; globs in quotes; or - for standard input. Read in order.
        tokenizer: Directory that `vocab` wrote, or a tokenizer.json from elsewhere.
        output: Directory for the token files.
        settings: What is written, and how text is read. The separator must be a special token of the tokenizer.
    """
    from shared.bpe import Tokenizer
    from trainer.console.progress import progress
    from trainer.text.sources import total_size
    from trainer.tokens.encode import encode_files

    begin = time.monotonic()
    with progress() as new_bar:
        bar = new_bar("encoding", total_size(files))
        report = encode_files(files, Tokenizer.from_files(tokenizer), output, settings, progress=bar)
    for name, manifest in report.manifests.items():
        logger.info(
            "%s: %s tokens in %s documents, %.2f bytes per token",
            output / f"{name}.bin",
            f"{manifest.count:,}",
            f"{manifest.documents:,}",
            manifest.bytes / manifest.count,
        )
    if report.end_is_held_out:
        logger.info(
            "too few documents to hold out whole ones (choose differently with --seed): %s is the end of the text, cut "
            "at a line break where there is one nearby",
            output / "val.bin",
        )
    if report.replaced:
        logger.warning("%s U+FFFD characters replace bytes that are not UTF-8", f"{report.replaced:,}")
    logger.info("%s bytes in %.1f s", f"{report.bytes_read:,}", time.monotonic() - begin)
