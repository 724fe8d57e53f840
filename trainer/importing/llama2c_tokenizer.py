"""llama2.c's `tokenizer.bin`: a SentencePiece vocabulary, as byte-level BPE where that gives the same ids.

SentencePiece merges characters; those without a piece become bytes at the end. Byte-level BPE merges bytes. The two
agree where no piece of several characters has a character beyond ASCII: such characters are then pretokens of their
own, which are looked up whole, and bytes beyond ASCII have no merges. The ids are those of llama2.c's run.c, whose
encode function puts a space before every text.
"""

import struct
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from shared.bpe import Tokenizer, TokenizerError
from shared.bpe.vocabulary import AddedToken, Vocabulary
from shared.system.errors import shown
from shared.system.regular_file import open_regular, read_regular
from trainer.errors import TrainerError

_ENTRY = struct.Struct("<fI")  # score and length, before the bytes of each piece
_LARGEST = 1 << 24  # bytes; Llama 2's 32,000 pieces have 434 KB
_CONTROL = ((b"<unk>", "<unk>"), (b"\n<s>\n", "<s>"), (b"\n</s>\n", "</s>"))  # in the file, and in text
_BOS, _EOS = 1, 2
_FIRST_BYTE = len(_CONTROL)
_FIRST_PIECE = _FIRST_BYTE + 256

_ADVICE = (
    "; byte-level BPE would give other ids. Use the model in transformers with its own tokenizer, or import it with "
    "another one to go on training from"
)

ENDS = (_BOS, _EOS)
"""The ids that end a text: its models write the begin-of-text id between stories."""


def is_llama2c_tokenizer(path: Path) -> bool:
    """Whether a file begins as a tokenizer.bin does."""
    try:
        with open_regular(path) as file:
            return file.read(17)[8:] == b"\x05\0\0\0<unk>"
    except OSError:  # a folder, or what the reader of tokenizers reports
        return False


def read_llama2c_tokenizer(path: Path) -> Tokenizer:
    """Read a file.

    Raises:
        TrainerError: It is damaged, or byte-level BPE would give other ids; names the piece.
    """
    pieces = _read_pieces(path)
    _check_order(path, [piece for _, piece in pieces])
    scores = {piece: score for score, piece in pieces[_FIRST_PIECE:]}
    ids = {piece: number for number, (_, piece) in enumerate(pieces)}
    texts = _texts(path, scores)
    wide = sorted(text for text in texts if len(text) == 1 and not text.isascii())
    several = sorted((text for text in texts if len(text) > 1), key=lambda text: -scores[text.encode()])
    _check_pieces(path, several, scores)
    _check_order_of_merges(path, several, texts)
    tokens = {_FIRST_BYTE + byte: bytes([byte]) for byte in range(256) if bytes([byte]) not in scores}
    tokens |= {ids[piece]: piece for piece in scores}
    merges = [pair for text in several for pair in _splits(text, texts)]
    try:
        tokenizer = Tokenizer(
            Vocabulary(
                tokens=dict(sorted(tokens.items())),
                merges=tuple((ids[left.encode()], ids[right.encode()]) for left, right in merges),
                added=tuple(AddedToken(number, content) for number, (_, content) in enumerate(_CONTROL)),
                pattern=_pattern(wide),
                prepended_space=True,
                ignore_merges=True,
                prefix=(_BOS,),
                bos=_CONTROL[_BOS][1],
                eos=_CONTROL[_EOS][1],
            )
        )
    except TokenizerError as error:
        raise TrainerError(f"{path}: {error}") from error
    _check_merges(path, several, scores)
    return tokenizer


def _read_pieces(path: Path) -> list[tuple[float, bytes]]:
    try:
        data = read_regular(path, _LARGEST)
    except OSError as error:
        raise TrainerError(f"{path}: cannot be read: {error.strerror}") from error
    pieces: list[tuple[float, bytes]] = []
    at = 4  # after the length of the longest piece
    while at < len(data):
        if at + _ENTRY.size > len(data):
            raise TrainerError(f"{path}: was cut off after {len(pieces)} pieces")
        score, length = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size + length
        if at > len(data) or not length:
            raise TrainerError(f"{path}: piece {len(pieces)} claims {length} bytes: the file is damaged or cut off")
        pieces.append((score, data[at - length : at]))
    return pieces


def _check_order(path: Path, pieces: Sequence[bytes]) -> None:
    """Ids 0 to 2 are control tokens and 3 to 258 bytes, as run.c takes for granted."""
    expected = [control for control, _ in _CONTROL] + [b"<0x%02X>" % byte for byte in range(256)]
    for number, piece in enumerate(expected):
        found = pieces[number] if number < len(pieces) else b""
        if found != piece:
            raise TrainerError(
                f"{path}: piece {number} is {shown(found)}, not {shown(piece)}: no vocabulary of llama2.c"
            )
    repeated = [piece for piece, count in Counter(pieces).items() if count > 1]
    if repeated:
        raise TrainerError(f"{path}: the piece {shown(repeated[0])} is there twice")


def _texts(path: Path, scores: Mapping[bytes, float]) -> dict[str, float]:
    try:
        return {piece.decode(): score for piece, score in scores.items()}
    except UnicodeDecodeError as error:
        raise TrainerError(f"{path}: the piece {shown(error.object)} is not UTF-8") from error


def _check_pieces(path: Path, several: Sequence[str], scores: Mapping[bytes, float]) -> None:
    """Refuse pieces that byte-level BPE, or the pattern, could not make."""
    for text in several:
        if not text.isascii():
            raise TrainerError(f"{path}: the piece {shown(text)} has a character beyond ASCII beside others{_ADVICE}")
        if " " in text.lstrip(" "):
            raise TrainerError(f"{path}: the piece {shown(text)} has a space after other characters{_ADVICE}")
    if len({scores[text.encode()] for text in several}) < len(several):
        raise TrainerError(f"{path}: two pieces have the same score, so that their order is not defined{_ADVICE}")


def _check_order_of_merges(path: Path, several: Sequence[str], known: Collection[str]) -> None:
    """Refuse a vocabulary in which a rank for each pair would merge in another order than a score for each piece.

    SentencePiece takes the best piece, wherever and of whichever two parts; a rank is that of one pair of parts. With
    longer left parts first, the two differ only where pairs that give the same piece lie side by side, and either
    overlap with the shorter left part to the left, or one of them comes to be part of a better piece with the other.
    """
    order = {text: number for number, text in enumerate(several)}
    larger: dict[str, list[str]] = {text: [] for text in several}
    for text in several:
        for part in {text[:at] for at in range(2, len(text))} | {text[at:] for at in range(1, len(text) - 1)}:
            if part in order and order[text] < order[part]:
                larger[part].append(text)
    for text in several:
        pairs = _splits(text, known)
        for left, right in pairs:
            rest = text[len(right) :]
            overlaps = len(left) != len(right) and text.startswith(right) and rest in known
            if overlaps and (len(right) > len(left) or rest == left):
                raise TrainerError(f"{path}: the piece {shown(text)} can be made of pairs that overlap{_ADVICE}")
            for other in larger[text] if len(pairs) > 1 else ():
                before, after = other.removesuffix(text), other.removeprefix(text)
                if (after != other and after.endswith(left)) or (before != other and before.startswith(right)):
                    raise TrainerError(
                        f"{path}: the piece {shown(other)} is better than its part {shown(text)}{_ADVICE}"
                    )


def _splits(text: str, known: Collection[str]) -> list[tuple[str, str]]:
    """Pairs of pieces that give a piece, the longest left one first."""
    pairs = [(text[:at], text[at:]) for at in range(len(text) - 1, 0, -1)]
    return [(left, right) for left, right in pairs if left in known and right in known]


def _check_merges(path: Path, several: Sequence[str], scores: Mapping[bytes, float]) -> None:
    """Each piece must be what merging its own characters gives, since it is looked up whole."""
    for text in several:
        if (merged := merge(list(text), scores)) != [text]:
            raise TrainerError(
                f"{path}: merging gives {shown(merged)} for the piece {shown(text)}, which is never used"
            )


def merge(parts: list[str], scores: Mapping[bytes, float]) -> list[str]:
    """SentencePiece's merges: of all neighbors that are a piece together, the best one, the first of equals."""
    while True:
        joined = [left + right for left, right in pairwise(parts)]
        places = [at for at, text in enumerate(joined) if text.encode() in scores]
        if not places:
            return parts
        best = max(places, key=lambda at: scores[joined[at].encode()])
        parts = [*parts[:best], joined[best], *parts[best + 2 :]]


def _pattern(wide: Sequence[str]) -> str:
    """Characters beyond ASCII that have a piece alone; a word with the spaces before it; spaces at an end."""
    every = "".join(wide)
    return (f"[{every}]|" if wide else "") + f" *[^ {every}]+| +"
