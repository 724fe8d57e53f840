"""SentencePiece's tokenizer.model: its ids, and refusals. Models are written here, and trained by `sentencepiece`."""

import io
import random
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from shared.bpe import Tokenizer, TokenizerError

CONTROL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["\u2581a", "ab", "\u2581ab", "\u2581", "a", "b", "é"]
# BPE with byte fallback; the identity as normalizer, without removing spaces.
TRAINER = b"\x18\x02\x98\x02\x01"
NORMALIZER = b"\x20\x00"


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])


def model(pieces: Sequence[str] = PIECES, trainer: bytes = TRAINER, normalizer: bytes = NORMALIZER) -> bytes:
    """The bytes of a model, after the protobuf description in SentencePiece's repository."""
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    scores = [*[0.0] * 259, *[-float(rank) for rank in range(len(pieces))]]
    entries = zip([*CONTROL, *BYTES, *pieces], scores, types, strict=True)
    data = b"".join(
        field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind]))
        for text, score, kind in entries
    )
    return data + field(2, trainer) + field(3, normalizer)


def test_a_model_is_opened(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model())
    for path in (tmp_path, tmp_path / "tokenizer.model"):
        tokenizer = Tokenizer.from_files(path)
        assert tokenizer.encode("ab é\n", add_special_tokens=True) == [1, 261, 262, 265, 3 + 10]
        assert tokenizer.decode([1, 261, 262, 265], skip_special_tokens=True) == "ab é"
        assert (tokenizer.bos_id, tokenizer.end_of_text_id) == (1, 2)
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.from_files(tmp_path / "saved").fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trainer": b"\x18\x01\x98\x02\x01"}, "the model is not BPE"),
        ({"trainer": b"\x18\x02"}, "it has no byte fallback"),
        ({"trainer": TRAINER + b"\xc0\x01\x01"}, "it has spaces behind words"),
        ({"trainer": TRAINER + b"\xc8\x02\xff\x7f"}, "the text ends with number 16383"),
        ({"normalizer": b"\x12\x02ab\x20\x00"}, "it normalizes characters"),
        ({"normalizer": b""}, "it removes repeated spaces"),
        ({"normalizer": NORMALIZER + b"\x18\x00"}, "it puts no space before a text"),
        ({"normalizer": NORMALIZER + b"\x28\x00"}, "it does not mark spaces"),
        ({"pieces": ["a", "a"]}, "the piece 'a' occurs twice"),
    ],
)
def test_what_would_give_other_ids_is_refused(change: dict[str, bytes], message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model(**change))  # type: ignore[arg-type]  # strings and bytes
    with pytest.raises(TokenizerError, match=rf"tokenizer\.model: .*{message}"):
        Tokenizer.from_files(tmp_path)


def test_pieces_of_other_types_are_refused(tmp_path: Path) -> None:
    path, piece = tmp_path / "tokenizer.model", "\u2581ab".encode() + b"\x15" + struct.pack("<f", -2.0) + b"\x18"
    for kind, name in ((4, "defined by its user"), (5, "marked as unused"), (9, "of the type 9")):
        path.write_bytes(model().replace(piece + b"\x01", piece + bytes([kind])))
        with pytest.raises(TokenizerError, match=f"piece 261, '▁ab', is {name}"):
            Tokenizer.from_files(path)


def test_damaged_models_are_refused(tmp_path: Path) -> None:
    """Cut anywhere, or with any byte changed: a tokenizer, or a clear error."""
    path, data = tmp_path / "tokenizer.model", model()
    draw = random.Random(3)
    for length in (20, 100, 3000, len(data) - 20, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(TokenizerError, match=r"tokenizer\.model"):
            Tokenizer.from_files(path)
    for _ in range(200):
        place = draw.randrange(16, len(data))
        path.write_bytes(data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :])
        with suppress(TokenizerError):
            Tokenizer.from_files(path)


@pytest.mark.parametrize("split", [True, False])
def test_trained_models_give_the_ids_of_sentencepiece(split: bool, tmp_path: Path, real_texts: dict[str, str]) -> None:
    """Also with pieces across words, where spaces join what is before them."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="SentencePiece comes with the extra bench")
    lines = [line for text in real_texts.values() for line in text[:15_000].split("\n") if line]
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=file, vocab_size=3000, model_type="bpe", byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        split_by_whitespace=split, allow_whitespace_only_pieces=True, minloglevel=2,
    )  # fmt: skip
    (tmp_path / "tokenizer.model").write_bytes(file.getvalue())
    ours = Tokenizer.from_files(tmp_path)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())
    real, draw = "".join(real_texts.values()), random.Random(4)
    pieces = [theirs.id_to_piece(number) for number in range(theirs.vocab_size())]
    for number in range(2500):
        start = draw.randrange(len(real))
        made = "".join(draw.choices([*pieces, " ", "  ", "\n", "🦊"], k=draw.randrange(1, 12)))
        text = made if number % 2 else real[start : start + draw.randrange(1, 200)]
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids), text
