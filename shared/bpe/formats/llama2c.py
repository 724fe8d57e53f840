"""llama2.c's `tokenizer.bin`: the pieces of a SentencePiece model with their scores, a space in them as itself.

Its ids are those of run.c's encode function, which merges as SentencePiece does and puts a space before every text.
"""

import struct
from pathlib import Path

from shared.bpe.errors import TokenizerError
from shared.bpe.formats.sentencepiece import Piece, vocabulary_of
from shared.bpe.piece_spelling import BYTE_PIECES, SPACE_MARK
from shared.bpe.vocabulary import Vocabulary
from shared.system.errors import short_repr
from shared.system.regular_file import open_regular, read_regular

_ENTRY = struct.Struct("<fI")  # score and length, before the bytes of each piece
_LARGEST = 1 << 24  # bytes; Llama 2's 32,000 pieces have 434 KB
_CONTROL = {"<unk>": "<unk>", "\n<s>\n": "<s>", "\n</s>\n": "</s>"}  # in the file, and in text
_FIRST = [*_CONTROL, *BYTE_PIECES]
_BOS, _EOS = 1, 2

ENDS = (_BOS, _EOS)
"""The ids that end a text: llama2.c's models write the begin-of-text id between stories."""


def is_llama2c(path: Path) -> bool:
    """Whether a file begins as a tokenizer.bin does."""
    try:
        with open_regular(path) as file:
            return file.read(17)[8:] == b"\x05\0\0\0<unk>"
    except OSError:  # a folder, or what the reader of tokenizers reports
        return False


def read(path: Path) -> Vocabulary:
    """Read a file.

    Raises:
        TokenizerError: It is damaged, or ranks cannot express the scores of its pieces.
    """
    try:
        data = read_regular(path, _LARGEST)
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return vocabulary_of(_pieces(data), bos=_BOS, eos=_EOS, prefix=(_BOS,))
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from None


def _pieces(data: bytes) -> list[Piece]:
    pieces: list[Piece] = []
    at = 4  # after the length of the longest piece
    while at < len(data):
        if at + _ENTRY.size > len(data):
            raise TokenizerError(f"was cut off after {len(pieces)} pieces")
        score, length = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size + length
        if at > len(data) or not length:
            raise TokenizerError(f"piece {len(pieces)} claims {length} bytes: the file is damaged or cut off")
        pieces.append(_piece(len(pieces), data[at - length : at], score))
    if len(pieces) < len(_FIRST):
        raise TokenizerError(f"has {len(pieces)} pieces, fewer than one for each byte")
    return pieces


def _piece(number: int, data: bytes, score: float) -> Piece:
    """A piece; 0 to 2 are control tokens and 3 to 258 bytes, as run.c assumes."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise TokenizerError(f"the piece {short_repr(data)} is not UTF-8") from None
    if number >= len(_FIRST):
        return Piece(text.replace(" ", SPACE_MARK), score, "text")
    if text != _FIRST[number]:
        raise TokenizerError(
            f"piece {number} is {short_repr(text)}, not {short_repr(_FIRST[number])}: not a vocabulary of llama2.c"
        )
    return Piece(_CONTROL.get(text, text), score, "control" if text in _CONTROL else "byte")
