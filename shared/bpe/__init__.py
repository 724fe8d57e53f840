"""Byte-level BPE: learning a vocabulary, text to ids and back, and the file formats. Needs no torch."""

from typing import TYPE_CHECKING, Any

from shared.bpe.errors import TextTooLongError, TokenizerError
from shared.bpe.patterns import PATTERNS
from shared.bpe.pieces import Piece
from shared.bpe.stream import StreamDecoder
from shared.bpe.tokenizer import Tokenizer

# Training brings the compiler with it, which who only opens a tokenizer need not wait for.
if TYPE_CHECKING:
    from shared.bpe.cutting import training_chunker
    from shared.bpe.training import TrainingReport, TrainingResult, train_bpe, train_bpe_from_sources

__all__ = [
    "PATTERNS",
    "Piece",
    "StreamDecoder",
    "TextTooLongError",
    "Tokenizer",
    "TokenizerError",
    "TrainingReport",
    "TrainingResult",
    "train_bpe",
    "train_bpe_from_sources",
    "training_chunker",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shared.bpe import cutting, training

    return getattr(cutting if name == "training_chunker" else training, name)
