"""llama2.c's tokenizer.bin: the ids of its run.c, written here again from its encode function."""

import random
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from shared.bpe import Tokenizer, TokenizerError
from shared.bpe.formats.llama2c import is_llama2c
from tests.trainer.importing import writers as w
from trainer.commands.import_model import ImportSettings, import_model

Piece = tuple[float, bytes]
CONTROL = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % byte for byte in range(256))]
LETTERS = " abehrst.é“中"


def write(path: Path, pieces: Sequence[str], control: Sequence[bytes] = CONTROL) -> Path:
    """As tokenizer.py's export, with the scores of SentencePiece's BPE: 0, -1, -2, …"""
    entries = [(0.0, piece) for piece in control]
    entries += [(-float(rank), piece.encode()) for rank, piece in enumerate(pieces)]
    data = struct.pack("<I", max(len(piece) for _, piece in entries))
    path.write_bytes(data + b"".join(struct.pack("<fI", score, len(piece)) + piece for score, piece in entries))
    return path


def read(path: Path) -> list[Piece]:
    data, pieces, at = path.read_bytes(), [], 4
    while at < len(data):
        score, length = struct.unpack_from("<fI", data, at)
        pieces.append((score, data[at + 8 : at + 8 + length]))
        at += 8 + length
    return pieces


def run_c(pieces: list[Piece], text: str) -> list[int]:
    """The steps of run.c's encode: characters or their bytes, then the best pair again and again."""
    ids = {piece: number for number, (_, piece) in enumerate(pieces)}
    found = [1]
    for character in " " + text if text else "":
        data = character.encode()
        found += [ids[data]] if data in ids else [byte + 3 for byte in data]
    while True:
        best = None
        for at in range(len(found) - 1):
            merged = ids.get(pieces[found[at]][1] + pieces[found[at + 1]][1])
            if merged is not None and (best is None or pieces[merged][0] > best[0]):
                best = (pieces[merged][0], at, merged)
        if best is None:
            return found
        found[best[1] : best[1] + 2] = [best[2]]


def texts(letters: str, words: Sequence[str], number: int) -> list[str]:
    draw = random.Random(5)
    pieces = [*letters, *words, " ", "  ", "\n", "\t", "ü", "語", "🦊", "<s>", "”"]
    return ["", " ", *("".join(draw.choices(pieces, k=draw.randint(1, 25))) for _ in range(number))]


def test_a_published_vocabulary_gives_the_ids_of_run_c(data_dir: Path, tmp_path: Path) -> None:
    """And so does transformers with what is written."""
    folder = data_dir / "models" / "stories260K"
    assert is_llama2c(folder / "tok512.bin")
    tokenizer, pieces = Tokenizer.from_files(folder / "tok512.bin"), read(folder / "tok512.bin")
    reference = np.load(folder / "greedy_reference.npz")["tokens"].tolist()
    story = (folder / "greedy_reference.txt").read_text()
    assert run_c(pieces, story)[: len(reference)] == reference[: len(run_c(pieces, story))]
    tokenizer.save(tmp_path)
    again, peer = Tokenizer.from_files(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    known = [piece.decode() for _, piece in pieces[259:]]
    for text in [story.strip(), *texts("", known, 300)]:
        expected = run_c(pieces, text)
        assert tokenizer.encode(text, add_special_tokens=True) == expected, text
        assert again.encode(text, add_special_tokens=True) == expected
        assert "".join(tokenizer.chunker().chunks([text])) == text
        assert [*tokenizer.encode_iterable([*text])] == expected[1:]
        assert tokenizer.decode(expected[1:]) == text
        if "<s>" not in text:  # which transformers recognizes in any text
            assert peer.encode(text) == expected


MERGES = ["er", "th", " th", "ere", " there", "ab", "  ", "aba"]


def test_made_vocabularies_give_the_ids_of_run_c(tmp_path: Path) -> None:
    path = write(tmp_path / "tokenizer.bin", [*MERGES, *LETTERS])
    tokenizer, pieces = Tokenizer.from_files(path), read(path)
    for text in texts(LETTERS, MERGES, 2_000):
        assert tokenizer.encode(text, add_special_tokens=True) == run_c(pieces, text), text


def test_offsets_and_the_fingerprint_know_of_the_space(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_files(write(tmp_path / "tokenizer.bin", [*MERGES, *LETTERS]))
    spans = tokenizer.encode_with_offsets(" there“")
    assert [(span.bytes, span.start, span.end) for span in spans] == [
        (b" ", 0, 1), (b" there", 0, 6), ("“".encode(), 6, 7),
    ]  # fmt: skip
    tokenizer.save(tmp_path)
    assert Tokenizer.from_files(tmp_path).fingerprint == tokenizer.fingerprint


Refuse = Callable[[Path, str], None]


@pytest.fixture
def refuse() -> Refuse:
    def refuse(path: Path, reason: str) -> None:
        with pytest.raises(TokenizerError, match=re.escape(reason)):
            Tokenizer.from_files(path)

    return refuse


ODD = [
    (" “", "a b", "the"),  # beyond ASCII beside others, a space within, and one that no merges give
    ("ab", "aba", "ba", "ababa"),
    ("ab", "bt", "abtab", "abt"),
    ("  ", "   ", "    "),
]


@pytest.mark.parametrize("pieces", ODD)
def test_odd_vocabularies_give_the_ids_of_run_c(pieces: Sequence[str], tmp_path: Path) -> None:
    path = write(tmp_path / "t.bin", [*pieces, *LETTERS])
    tokenizer, expected = Tokenizer.from_files(path), read(path)
    for text in texts(LETTERS, pieces, 500):
        assert tokenizer.encode(text, add_special_tokens=True) == run_c(expected, text), text


def test_pieces_of_one_score_are_refused(refuse: Refuse, tmp_path: Path) -> None:
    path = write(tmp_path / "t.bin", ["ab", "ba", *LETTERS])
    data = path.read_bytes()
    entry = struct.pack("<fI", -1.0, 2) + b"ba"
    path.write_bytes(data.replace(entry, struct.pack("<fI", 0.0, 2) + b"ba"))
    refuse(path, "the pieces 'ab' and 'ba' have the same score")


def test_damaged_files_are_refused(refuse: Refuse, tmp_path: Path) -> None:
    path = write(tmp_path / "t.bin", [*MERGES, *LETTERS])
    whole = path.read_bytes()
    for length in (0, 4, 10, 17, 300, len(whole) - 1):
        path.write_bytes(whole[:length])
        refuse(path, "t.bin")
    path.write_bytes(whole[:21] + struct.pack("<I", 1 << 31) + whole[25:])
    refuse(path, "piece 1 claims 2147483648 bytes")
    refuse(write(path, ["a", "a"]), "the piece 'a' occurs twice")
    refuse(write(path, ["a"], control=[*CONTROL[:5], b"<0xFF>", *CONTROL[6:]]), "piece 5 is '<0xFF>', not '<0x02>'")
    refuse(tmp_path / "none", "cannot be read")


def test_import_with_it(tmp_path: Path) -> None:
    vocabulary = write(tmp_path / "tokenizer.bin", [*MERGES, *LETTERS])
    w.write_llama2c(tmp_path / "model.bin", w.llama_weights(), 1)
    import_model(tmp_path / "model.bin", tmp_path / "out", settings=ImportSettings(tokenizer=vocabulary))
    assert '"eos_token_id": [\n    1,\n    2\n  ]' in (tmp_path / "out" / "generation_config.json").read_text()


def test_scores_that_are_no_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "tokenizer.bin", [*LETTERS, "ab"])
    data = bytearray(path.read_bytes())
    data[-10:-6] = struct.pack("<f", float("nan"))  # before the length and the two bytes of the last piece
    path.write_bytes(data)
    with pytest.raises(TokenizerError, match=r"tokenizer\.bin: the score of the piece .* is not a number"):
        Tokenizer.from_files(path)
