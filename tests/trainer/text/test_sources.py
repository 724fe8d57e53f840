"""Every format gives the vocabulary that its text gives."""

import gzip
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from shared.bpe import train_bpe
from trainer.errors import UsageError
from trainer.settings.vocab import VocabSettings
from trainer.text.sources import open_inputs, total_size
from trainer.text.utf8 import CorpusError
from trainer.tokenizer.report import TokenizerReport
from trainer.tokenizer.train import train_tokenizer

END = "<|endoftext|>"
DOCUMENTS = [f"the cat number {n} sat on the mat, naïve 中文\n" for n in range(500)] + ["", "last"]


def learn(folder: Path, *inputs: Path | str, **options: object) -> TokenizerReport:
    return train_tokenizer([Path(given) for given in inputs], folder / "out", VocabSettings(vocab_size=320, **options))  # type: ignore[arg-type]


def expected(texts: list[str]) -> str:
    return train_bpe(texts, 320, special_tokens=[END]).tokenizer.fingerprint


def pack(name: str, data: bytes) -> bytes:
    if name.endswith(".gz"):
        return gzip.compress(data)
    if name.endswith(".zst"):
        return zstandard.compress(data)
    return data


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst", "noname"])
def test_plain_and_packed_text(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pack(name, END.join(DOCUMENTS).encode()))
    assert learn(tmp_path, tmp_path / name).tokenizer.fingerprint == expected(DOCUMENTS)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    lines = "".join(json.dumps({"id": 1, "body": text}) + "\n" for text in DOCUMENTS)
    (tmp_path / name).write_bytes(pack(name, (lines + "\n").encode()))
    report = learn(tmp_path, tmp_path / name, text_field="body")
    assert report.tokenizer.fingerprint == expected(DOCUMENTS)
    with pytest.raises(
        CorpusError, match=r"line 1, has no text in the field 'text' \(it has 'id', 'body'\).*--text-field"
    ):
        learn(tmp_path, tmp_path / name, overwrite=True)


def test_parquet(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"body": DOCUMENTS}), tmp_path / "a.parquet")
    report = learn(tmp_path, tmp_path / "a.parquet", text_field="body")
    assert report.tokenizer.fingerprint == expected(DOCUMENTS)
    with pytest.raises(CorpusError, match=r"no column 'text' \(it has 'body'\)"):
        learn(tmp_path, tmp_path / "a.parquet", overwrite=True)


def test_folders_and_globs(tmp_path: Path) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/a.txt").write_text(DOCUMENTS[0], encoding="utf-8")
    (tmp_path / "in/deep/b.md").write_text(DOCUMENTS[1], encoding="utf-8")
    (tmp_path / "in/deep/c.bin").write_bytes(b"\xff")
    assert learn(tmp_path, tmp_path / "in").tokenizer.fingerprint == expected(DOCUMENTS[:2])
    found = learn(tmp_path, str(tmp_path / "in/**/*.[tm]*"), overwrite=True)
    assert found.tokenizer.fingerprint == expected(DOCUMENTS[:2])
    assert total_size([tmp_path / "in"]) == sum(len(text.encode()) for text in DOCUMENTS[:2])
    with pytest.raises(UsageError, match="no file matches"):
        learn(tmp_path, str(tmp_path / "*.nothing"), overwrite=True)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder that a user without privileges may read, and being that user."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        yield folder
        os.seteuid(user)


def test_files_and_folders_that_may_not_be_read_are_named(unprivileged: Path) -> None:
    (unprivileged / "a.txt").write_text("text")
    (unprivileged / "a.txt").chmod(0)
    (unprivileged / "deep").mkdir()
    (unprivileged / "deep/b.txt").write_text("text")
    (unprivileged / "deep").chmod(0)
    with pytest.raises(CorpusError, match=r"a\.txt cannot be read: Permission denied"):
        open_inputs([unprivileged / "a.txt"], text_field="text")
    with pytest.raises(CorpusError, match="deep cannot be read: Permission denied"):
        open_inputs([unprivileged], text_field="text")
    (unprivileged / "deep").chmod(0o755)


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(END.join(DOCUMENTS).encode())))
    assert learn(tmp_path, "-").tokenizer.fingerprint == expected(DOCUMENTS)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.txt.zst"])
def test_what_is_not_packed_as_it_says_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"plain text")
    with pytest.raises(CorpusError, match=f"{name} cannot be decompressed"):
        learn(tmp_path, tmp_path / name)


def test_wrong_json_and_surrogates_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    with pytest.raises(CorpusError, match="line 2, is not JSON"):
        learn(tmp_path, tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text('{"text": "fine \\ud800 text"}\n')
    with pytest.raises(CorpusError, match="is not UTF-8: byte 0xed at offset 5"):
        learn(tmp_path, tmp_path / "b.jsonl")


def test_the_report_is_kept_beside_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(END.join(DOCUMENTS), encoding="utf-8")
    (tmp_path / "b.txt").write_text("the cat sat on the mat", encoding="utf-8")
    report = learn(tmp_path, tmp_path / "a.txt", held_out=tmp_path / "b.txt")
    saved = json.loads((tmp_path / "out/vocab_report.json").read_text(encoding="utf-8"))
    assert saved == report.to_json()
    assert saved["bytes_counted"] == (tmp_path / "a.txt").stat().st_size
    assert saved["tokens_by_kind"]["single byte"] == 256
    assert sum(saved["tokens_by_kind"].values()) == saved["reached_size"] == len(report.tokenizer)
    tokens = report.tokenizer.encode("the cat sat on the mat")
    assert saved["held_out_bytes_per_token"] == pytest.approx(22 / len(tokens))
