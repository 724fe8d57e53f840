"""Byte-level BPE: learning a vocabulary, text to ids and back, and the file formats. Needs no torch."""

from shared.bpe.errors import TokenizerError
from shared.bpe.patterns import PATTERNS
from shared.bpe.pieces import Piece
from shared.bpe.stream import StreamDecoder
from shared.bpe.tokenizer import Tokenizer
from shared.bpe.training import TrainingResult, train_bpe, training_chunker

__all__ = [
    "PATTERNS",
    "Piece",
    "StreamDecoder",
    "Tokenizer",
    "TokenizerError",
    "TrainingResult",
    "train_bpe",
    "training_chunker",
]
