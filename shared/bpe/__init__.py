"""Byte-level BPE: training a vocabulary, text to ids and back, and the file formats. Needs no torch.

This is the public interface, and `shared.bpe.training` that for sources of text; other modules are private.
"""

from typing import TYPE_CHECKING, Any

from shared.bpe.encoding.merge_tree import TreeNode
from shared.bpe.encoding.offsets import TokenSpan
from shared.bpe.errors import SourceError, TextTooLongError, TokenizerError, TooLongError, TrainingStoppedError
from shared.bpe.patterns.named import PATTERNS, resolve_pattern
from shared.bpe.stream_decoder import StreamDecoder
from shared.bpe.tokenizer import Tokenizer
from shared.bpe.vocabulary import AddedToken, Vocabulary, encode_utf8

# Training imports numba, which takes a while: only processes that train need to wait for it.
if TYPE_CHECKING:
    from shared.bpe.training import TrainingReport, TrainingResult, train_bpe, train_bpe_from_sources

__all__ = [
    "PATTERNS",
    "AddedToken",
    "SourceError",
    "StreamDecoder",
    "TextTooLongError",
    "TokenSpan",
    "Tokenizer",
    "TokenizerError",
    "TooLongError",
    "TrainingReport",
    "TrainingResult",
    "TrainingStoppedError",
    "TreeNode",
    "Vocabulary",
    "encode_utf8",
    "resolve_pattern",
    "train_bpe",
    "train_bpe_from_sources",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shared.bpe import training

    return getattr(training, name)
