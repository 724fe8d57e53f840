"""SentencePiece's tokenizer.model, for BPE with byte fallback and no normalization, as Llama 2's.

A file is a protobuf message (https://protobuf.dev/programming-guides/encoding). The numbers of the fields are those of
sentencepiece_model.proto (https://github.com/google/sentencepiece, src).
"""

import math
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from shared.bpe.errors import TokenizerError
from shared.bpe.formats.piece_scores import merges_by_score
from shared.bpe.patterns.named import WHOLE
from shared.bpe.piece_spelling import BYTE_PIECES, from_piece
from shared.bpe.vocabulary import AddedToken, Vocabulary
from shared.system.errors import short_repr
from shared.system.regular_file import open_regular, read_regular

Kind = Literal["text", "control", "byte"]

_LARGEST = 1 << 26  # bytes; 256,000 pieces have 4 MB
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_BPE = 2
_BEGINNING = re.compile(rb"\n.{1,3}\n.{1,2}<(unk|pad|s)>", re.DOTALL)
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_KINDS: Mapping[int, Kind] = {_NORMAL: "text", _UNKNOWN: "control", _CONTROL: "control", _BYTE: "byte"}
_MODEL_TYPE, _SUFFIX, _BYTE_FALLBACK, _BOS, _EOS = 3, 24, 35, 41, 42
_CHARACTER_MAP, _DUMMY_PREFIX, _REMOVES_SPACES, _ESCAPES_SPACES, _RULES = 2, 3, 4, 5, 6


class Piece(NamedTuple):
    """A token of a SentencePiece vocabulary; its id is its number."""

    text: str
    score: float
    kind: Kind


def is_model(path: Path) -> bool:
    """Whether a file begins as a model does, with the piece of a control token."""
    try:
        with open_regular(path) as file:
            return _BEGINNING.match(file.read(16)) is not None
    except OSError:  # a folder, or what the reader of tokenizers reports
        return False


def read(path: Path) -> Vocabulary:
    """Read a file.

    Raises:
        TokenizerError: It is damaged, or describes a tokenizer that would not be matched exactly.
    """
    try:
        data = read_regular(path, _LARGEST)
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return _parse(data)
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from None


def vocabulary_of(pieces: Sequence[Piece], *, bos: int, eos: int, prefix: tuple[int, ...] = ()) -> Vocabulary:
    """The vocabulary of pieces by their scores, with a space before every text.

    Args:
        pieces: In order of id.
        bos: The id that begins a text; -1 for none.
        eos: The id that ends one; -1 for none.
        prefix: Ids put before a text with `add_special_tokens`.

    Raises:
        TokenizerError: A byte has no token, a piece occurs twice, or ranks cannot express the scores, such as NaN.
    """
    repeated = [text for text, count in Counter(piece.text for piece in pieces).items() if count > 1]
    if repeated:
        raise TokenizerError(f"the piece {short_repr(repeated[0])} occurs twice")
    if (damaged := next((piece for piece in pieces if math.isnan(piece.score)), None)) is not None:
        raise TokenizerError(f"the score of the piece {short_repr(damaged.text)} is not a number")
    ids = {piece.text: number for number, piece in enumerate(pieces)}
    kinds = {piece.text: piece.kind for piece in pieces}
    missing = [text for text in BYTE_PIECES if kinds.get(text) != "byte"]
    if missing:
        raise TokenizerError(f"there is no token {missing[0]}; only vocabularies with byte fallback are supported")
    scores = {piece.text: piece.score for piece in pieces if piece.kind == "text"}
    control = [piece.text for piece in pieces if piece.kind == "control"]
    return Vocabulary(
        tokens={ids[text]: from_piece(text) for text in scores},
        merges=tuple((ids[left], ids[right]) for left, right in merges_by_score(scores)),
        added=tuple(AddedToken(ids[text], text) for text in control),
        pattern=WHOLE,
        prepended_space=True,
        byte_tokens=tuple(ids[text] for text in BYTE_PIECES),
        strips_space=True,
        prefix=prefix,
        bos=pieces[bos].text if bos >= 0 else None,
        eos=pieces[eos].text if eos >= 0 else None,
    )


def _parse(data: bytes) -> Vocabulary:
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for field, value in _fields(data):
        if field == _PIECES and isinstance(value, bytes):
            pieces.append(_piece(value, len(pieces)))
        elif field == _TRAINER and isinstance(value, bytes):
            trainer = dict(_fields(value))
        elif field == _NORMALIZER and isinstance(value, bytes):
            normalizer = dict(_fields(value))
    _check(trainer, normalizer)
    bos, eos = (_signed(trainer.get(field, default)) for field, default in ((_BOS, 1), (_EOS, 2)))
    if max(bos, eos) >= len(pieces):
        raise TokenizerError(f"there are {len(pieces)} pieces, but the text ends with number {max(bos, eos)}")
    return vocabulary_of(pieces, bos=bos, eos=eos, prefix=(bos,) if bos >= 0 else ())


def _check(trainer: Mapping[int, int | bytes], normalizer: Mapping[int, int | bytes]) -> None:
    unsupported = {
        "the model is not BPE": trainer.get(_MODEL_TYPE, 1) != _BPE,
        "it has no byte fallback": not trainer.get(_BYTE_FALLBACK),
        "it has spaces behind words": bool(trainer.get(_SUFFIX)),
        "it normalizes characters": bool(normalizer.get(_CHARACTER_MAP) or normalizer.get(_RULES)),
        "it removes repeated spaces": bool(normalizer.get(_REMOVES_SPACES, 1)),
        "it puts no space before a text": not normalizer.get(_DUMMY_PREFIX, 1),
        "it does not mark spaces": not normalizer.get(_ESCAPES_SPACES, 1),
    }
    for reason, is_unsupported in unsupported.items():
        if is_unsupported:
            raise TokenizerError(f"{reason}; only BPE with byte fallback, as Llama 2's, is supported")


def _piece(data: bytes, number: int) -> Piece:
    fields = dict(_fields(data))
    text, score, kind = fields.get(1, b""), fields.get(2, b"\0\0\0\0"), fields.get(3, _NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int) or not text:
        raise TokenizerError(f"piece {number} is damaged")
    if kind not in _KINDS:
        name = f"piece {number}, {short_repr(text.decode(errors='replace'))}"
        advice = "open the model's tokenizer.json, if there is one"
        raise TokenizerError(f"{name}, is {_special_kind(kind)}, which is not supported; {advice}")
    try:
        return Piece(text.decode(), struct.unpack("<f", score)[0], _KINDS[kind])
    except (UnicodeDecodeError, struct.error):
        raise TokenizerError(f"piece {number} is damaged") from None


def _special_kind(kind: int) -> str:
    return {_USER_DEFINED: "defined by its user", _UNUSED: "marked as unused"}.get(kind, f"of the type {kind}")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: numbers as they are, everything else as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
        if kind == _BYTES:
            size, at = _varint(data, at)
        if size < 0 or at + size > len(data):
            raise TokenizerError(f"is not a SentencePiece model, or was cut off, at byte {at} of {len(data)}")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7
    raise TokenizerError(f"is not a SentencePiece model, or was cut off, at byte {at} of {len(data)}")


def _signed(value: int | bytes) -> int:
    """A number of 64 bits, of which the highest is a sign."""
    if isinstance(value, bytes):
        raise TokenizerError("a number is damaged")
    return value - (1 << 64) if value >= 1 << 63 else value
