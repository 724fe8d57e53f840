"""Training a vocabulary: sources of text, pretoken counts in bounded memory, and merges.

This is the public interface; the modules are private. Ideas and figures: docs/explanation/tokenizer.md.
"""

from shared.bpe.errors import SourceError, TooLongError, TrainingStoppedError
from shared.bpe.kernels.utf8 import first_invalid
from shared.bpe.training.config import TrainingConfig
from shared.bpe.training.corpus import (
    CHUNK_BYTES,
    UNLIMITED,
    Blocks,
    Bytes,
    Chunk,
    Errors,
    Source,
    Specials,
    Texts,
    changed,
    escaped_characters,
    read_error,
    replace_invalid,
    version_of,
)
from shared.bpe.training.part_counts import CountElsewhere, PartCounts, count_part
from shared.bpe.training.result import TrainingReport, TrainingResult
from shared.bpe.training.text_file import TextFile
from shared.bpe.training.train import train_bpe, train_bpe_from_sources

__all__ = [
    "CHUNK_BYTES",
    "UNLIMITED",
    "Blocks",
    "Bytes",
    "Chunk",
    "CountElsewhere",
    "Errors",
    "PartCounts",
    "Source",
    "SourceError",
    "Specials",
    "TextFile",
    "Texts",
    "TooLongError",
    "TrainingConfig",
    "TrainingReport",
    "TrainingResult",
    "TrainingStoppedError",
    "changed",
    "count_part",
    "escaped_characters",
    "first_invalid",
    "read_error",
    "replace_invalid",
    "train_bpe",
    "train_bpe_from_sources",
    "version_of",
]
