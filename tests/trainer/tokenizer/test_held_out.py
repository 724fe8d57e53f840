"""Held-out text is not trained on, and its compression is reported."""

import json
from pathlib import Path

import pytest

from shared.bpe import train_bpe
from trainer.errors import TrainerError, UsageError
from trainer.settings.vocab import VocabSettings
from trainer.text.utf8 import CorpusError
from trainer.tokenizer import held_out
from trainer.tokenizer.held_out import parse_held_out
from trainer.tokenizer.train import train_tokenizer

END = "<|endoftext|>"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in ("b.txt", "a.txt", "c.txt")]
    for number, path in enumerate(paths):
        path.write_text("".join(f"the cat {number} sat on mat {n}{END}\n" for n in range(300)))
    return paths


def test_the_beginning_of_the_first_file_by_name(
    tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = train_tokenizer(files, tmp_path / "out", VocabSettings(vocab_size=300, held_out="500"))
    assert report.held_out is not None
    (sample,) = report.held_out.parts
    assert 500 <= len(sample) < 550
    texts = [path.read_text() for path in files]
    assert texts[1].startswith(sample.decode())
    texts[1] = texts[1].removeprefix(sample.decode())
    expected = train_bpe(texts, 300, special_tokens=[END]).tokenizer
    assert report.tokenizer.fingerprint == expected.fingerprint
    assert report.bytes_read == sum(map(len, texts))
    ordinary = [part for part in sample.decode().split(END) if part]
    tokens = sum(len(expected.encode(part)) for part in ordinary)
    assert report.held_out_bytes_per_token == pytest.approx(sum(map(len, ordinary)) / tokens)
    saved = json.loads((tmp_path / "out/vocab_report.json").read_text())
    assert saved["held_out"] == f"the first {len(sample):,} bytes of {files[1]}"
    assert saved["held_out_bytes"] == len(sample)
    again = train_tokenizer(
        files[::-1], tmp_path / "out", VocabSettings(vocab_size=300, held_out="500", overwrite=True)
    )
    assert again.tokenizer.fingerprint == expected.fingerprint


@pytest.mark.parametrize("size", [1, 5000, 3 << 20])
def test_as_much_as_was_asked_for(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"the cat sat on mat {n}{END}\n" for n in range(120_000)))
    report = train_tokenizer([path], tmp_path / "out", VocabSettings(vocab_size=260, held_out=str(size)))
    assert report.held_out is not None
    assert size <= report.held_out.size < size + 50
    assert report.bytes_read == path.stat().st_size - report.held_out.size


def test_more_than_there_is(tmp_path: Path, files: list[Path]) -> None:
    with pytest.raises(TrainerError, match=r"the held-out [0-9,]+ bytes leave only white space .*: lower --held-out"):
        train_tokenizer(files, tmp_path / "out", VocabSettings(vocab_size=300, held_out="1M"))


def test_a_file_that_is_held_out_takes_nothing_of_the_text(tmp_path: Path, files: list[Path]) -> None:
    (tmp_path / "blank.txt").write_text(" \n")
    settings = VocabSettings(vocab_size=300, held_out=str(files[0]))
    with pytest.raises(TrainerError, match="the files contain only white space"):
        train_tokenizer([tmp_path / "blank.txt"], tmp_path / "out", settings)


def test_small_files_are_held_out_as_a_whole(tmp_path: Path, files: list[Path]) -> None:
    size = files[1].stat().st_size
    report = train_tokenizer(files, tmp_path / "out", VocabSettings(vocab_size=300, held_out=str(2 * size)))
    assert (
        report.tokenizer.fingerprint
        == train_bpe([files[2].read_text()], 300, special_tokens=[END]).tokenizer.fingerprint
    )
    assert report.held_out is not None
    assert report.held_out.name == f"the beginnings of 2 files, from {files[1]} to {files[0]}"


def test_a_sample_that_is_not_utf8_is_an_error_like_any_other_text(tmp_path: Path, files: list[Path]) -> None:
    files[1].write_bytes(b"text \xff")
    with pytest.raises(CorpusError, match=r"a\.txt is not UTF-8: byte 0xff at offset 5"):
        train_tokenizer(files, tmp_path / "out", VocabSettings(vocab_size=300, held_out="1"))
    train_tokenizer(files, tmp_path / "out", VocabSettings(vocab_size=300, held_out="1", errors="replace"))


def test_by_default_nothing_is_held_out(tmp_path: Path, files: list[Path]) -> None:
    report = train_tokenizer(files, tmp_path / "out", VocabSettings(vocab_size=300))
    assert (report.held_out, report.held_out_bytes_per_token) == (None, None)
    assert report.bytes_read == sum(path.stat().st_size for path in files)


def test_the_option(tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_held_out(None, files) == 0
    assert parse_held_out("0", files) == 0
    assert parse_held_out("2K", files) == 2048
    assert parse_held_out(str(files[0]), files) == files[0]
    with pytest.raises(UsageError, match=r"--held-out 'none\.txt' is neither an existing file nor a size"):
        parse_held_out("none.txt", files)
    monkeypatch.setattr(held_out, "_AUTOMATIC_FROM", sum(path.stat().st_size for path in files))
    assert parse_held_out(None, [tmp_path]) == 1 << 20
