"""Byte-level BPE: learning a vocabulary, text to ids and back, and the file formats. Needs no torch."""

from typing import TYPE_CHECKING, Any

from shared.bpe.encoding.offsets import Piece
from shared.bpe.errors import SourceError, TextTooLongError, TokenizerError, TooLongError
from shared.bpe.patterns.named import PATTERNS
from shared.bpe.stream_decoder import StreamDecoder
from shared.bpe.tokenizer import Tokenizer

# Training brings the compiler with it, which who only opens a tokenizer need not wait for.
if TYPE_CHECKING:
    from shared.bpe.training.cutting import training_chunker
    from shared.bpe.training.train import TrainingReport, TrainingResult, train_bpe, train_bpe_from_sources

__all__ = [
    "PATTERNS",
    "Piece",
    "SourceError",
    "StreamDecoder",
    "TextTooLongError",
    "Tokenizer",
    "TokenizerError",
    "TooLongError",
    "TrainingReport",
    "TrainingResult",
    "train_bpe",
    "train_bpe_from_sources",
    "training_chunker",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shared.bpe.training import cutting
    from shared.bpe.training import train as training

    return getattr(cutting if name == "training_chunker" else training, name)
