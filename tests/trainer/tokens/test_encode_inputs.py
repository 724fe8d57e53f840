"""Every format gives the token file that its documents give, on any number of threads."""

import gzip
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from shared.bpe import AddedToken, Tokenizer, Vocabulary, train_bpe
from shared.bpe.training import TextFile
from trainer.errors import UsageError
from trainer.settings.encode import EncodeSettings
from trainer.text import sources
from trainer.text.memory import EncodingMemory
from trainer.text.utf8 import CorpusError
from trainer.tokens import parallel_encoder
from trainer.tokens.encode import EncodingReport, encode_files
from trainer.tokens.parallel_encoder import EncodedChunk, ParallelEncoder
from trainer.tokens.token_file import TokenFile

END = "<|endoftext|>"
DOCUMENTS = [f"the cat number {n} sat on the mat, naïve 中文\n" for n in range(300)] + ["", "last"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe(DOCUMENTS, 300, special_tokens=[END]).tokenizer


def encode(
    folder: Path,
    tokenizer: Tokenizer,
    *inputs: Path | str,
    progress: Callable[[int], None] | None = None,
    **options: object,
) -> EncodingReport:
    settings = EncodeSettings(overwrite=True, **options)  # type: ignore[arg-type]
    return encode_files([Path(given) for given in inputs], tokenizer, folder / "out", settings, progress=progress)


def ids_of(folder: Path) -> list[int]:
    return TokenFile.open(folder / "out", "train").tokens.tolist()  # type: ignore[no-any-return]


def expected(tokenizer: Tokenizer, documents: list[str]) -> list[int]:
    end = tokenizer.end_of_text_id
    return [token for document in documents for token in (*tokenizer.encode(document), end)]


def pack(name: str, data: bytes) -> bytes:
    if name.endswith(".gz"):
        return gzip.compress(data)
    if name.endswith(".zst"):
        return zstandard.compress(data)
    return data


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.md.zst"])
def test_plain_and_packed_text(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    (tmp_path / name).write_bytes(pack(name, END.join(DOCUMENTS).encode()))
    report = encode(tmp_path, tokenizer, tmp_path / name)
    assert ids_of(tmp_path) == expected(tokenizer, DOCUMENTS)
    (source,) = report.manifests["train"].sources
    assert source.bytes == (tmp_path / name).stat().st_size
    assert report.bytes_read == len(END.join(DOCUMENTS).encode())


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.ndjson.zst", "a.parquet"])
@pytest.mark.parametrize("batch", [1, 100, 1 << 20])
def test_a_record_is_a_document(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, name: str, batch: int
) -> None:
    monkeypatch.setattr(parallel_encoder, "_RECORDS_BYTES", batch)
    if name.endswith("parquet"):
        parquet.write_table(pyarrow.table({"body": DOCUMENTS}), tmp_path / name)
    else:
        lines = "".join(json.dumps({"body": text}) + "\n" for text in DOCUMENTS)
        (tmp_path / name).write_bytes(pack(name, lines.encode()))
    report = encode(tmp_path, tokenizer, tmp_path / name, text_field="body", threads=2)
    assert ids_of(tmp_path) == expected(tokenizer, DOCUMENTS)
    manifest = report.manifests["train"]
    assert manifest.documents == manifest.sources[0].documents == len(DOCUMENTS)
    assert not manifest.sources[0].ends_with_separator
    assert manifest.bytes == sum(len(text.encode()) for text in DOCUMENTS)


@pytest.mark.case("D31")
@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet"])
def test_records_without_text_are_not_gathered_without_end(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    """A part is bounded by what it takes, and not by its characters: here there are none."""
    if name.endswith("parquet"):
        parquet.write_table(pyarrow.table({"text": [""] * 50_000}), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(pack(name, b'{"text": ""}\n' * 50_000))
    [given] = sources.open_inputs([tmp_path / name], text_field="text")
    encoder = ParallelEncoder(tokenizer, END, tokenizer.special_tokens[END], "strict", EncodingMemory(None, 1), 1)
    sizes = [len(chunk.ids) for chunk in encoder.encode([given]) if isinstance(chunk, EncodedChunk)]
    assert sum(sizes) == 50_000
    assert max(sizes) < 20_000


def test_what_a_record_spells_is_never_special(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": f"a{END}b"}) + "\n")
    assert encode(tmp_path, tokenizer, tmp_path / "a.jsonl").manifests["train"].documents == 1
    assert ids_of(tmp_path).count(tokenizer.end_of_text_id) == 1
    assert tokenizer.decode(ids_of(tmp_path)) == f"a{END}b{END}"


def test_folders_and_globs_and_formats_together(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("one")
    (tmp_path / "in/b.jsonl").write_text(json.dumps({"text": "two"}) + "\n" + json.dumps({"text": "three"}))
    (tmp_path / "in/c.md").write_text(f"four{END}")
    documents = ["one", "two", "three", "four"]
    report = encode(tmp_path, tokenizer, tmp_path / "in")
    assert ids_of(tmp_path) == expected(tokenizer, documents)
    assert [source.documents for source in report.manifests["train"].sources] == [1, 2, 1]
    encode(tmp_path, tokenizer, str(tmp_path / "in/*.[jt]*"), tmp_path / "in/c.md")
    assert ids_of(tmp_path) == expected(tokenizer, documents)
    with pytest.raises(UsageError, match="no file matches"):
        encode(tmp_path, tokenizer, str(tmp_path / "*.nothing"))


def test_standard_input_and_pipes(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    data = END.join(DOCUMENTS).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    report = encode(tmp_path, tokenizer, "-")
    assert ids_of(tmp_path) == expected(tokenizer, DOCUMENTS)
    assert report.manifests["train"].sources[0].bytes == len(data)
    reader, writer = os.pipe()
    os.write(writer, b"from a pipe")
    os.close(writer)
    encode(tmp_path, tokenizer, f"/dev/fd/{reader}")
    assert ids_of(tmp_path) == expected(tokenizer, ["from a pipe"])
    os.close(reader)


@pytest.mark.parametrize("nfc", [False, True])
@pytest.mark.parametrize("pattern", ["gpt2", r"\w+|\W"])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_patterns_and_normalization(tmp_path: Path, nfc: bool, pattern: str, threads: int) -> None:
    trained = train_bpe(DOCUMENTS, 300, special_tokens=[END], pattern=pattern).tokenizer.vocabulary
    vocabulary = Vocabulary(trained.tokens, trained.merges, trained.added, trained.pattern, nfc=nfc)
    text = f"the cat e\u0301\nat {END}sat 中文\u3000\n\nthe naïve {END}".encode() * 2000
    (tmp_path / "a.txt").write_bytes(text)
    tokenizer = Tokenizer(vocabulary)
    encode(tmp_path, tokenizer, tmp_path / "a.txt", threads=threads)
    assert ids_of(tmp_path) == tokenizer.encode(text.decode(), allowed_special=[END])


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("chunk_bytes", [3, 1 << 20])
def test_wrong_bytes_may_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, chunk_bytes: int, *, special: bool
) -> None:
    if not special:  # such a vocabulary is cut by characters
        vocabulary = tokenizer.vocabulary
        added = (*vocabulary.added, AddedToken(300, "fine text", special=False))
        tokenizer = Tokenizer(Vocabulary(vocabulary.tokens, vocabulary.merges, added, vocabulary.pattern))
    monkeypatch.setattr(sources, "TextFile", lambda path: TextFile(path, chunk_bytes))
    data = b"fine text \xff and \xc3( sat \xef\xbf\xbd \xe2\x82 \xed\xa0\x80 \xe2\x82" * 50
    (tmp_path / "a.txt").write_bytes(data)
    report = encode(tmp_path, tokenizer, tmp_path / "a.txt", errors="replace")
    assert ids_of(tmp_path) == expected(tokenizer, [data.decode(errors="replace")])
    assert report.replaced == 7 * 50
    with pytest.raises(CorpusError, match=r"byte 0xff at offset 10 is invalid .*--errors replace"):
        encode(tmp_path, tokenizer, tmp_path / "a.txt")


def test_lone_surrogates_of_json_are_named_or_replaced(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "\\ud800"}\n')
    with pytest.raises(CorpusError, match=r"a\.jsonl, record 2, contains a lone surrogate"):
        encode(tmp_path, tokenizer, tmp_path / "a.jsonl")
    assert encode(tmp_path, tokenizer, tmp_path / "a.jsonl", errors="replace").replaced == 3
    assert ids_of(tmp_path) == expected(tokenizer, ["fine", "\ufffd" * 3])


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl"])
def test_a_file_that_is_written_to_meanwhile_is_refused(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    line = json.dumps({"text": "some text " * 50}) + "\n"
    (tmp_path / name).write_bytes(pack(name, (line * 20_000).encode()))

    def change(_: int) -> None:
        os.utime(tmp_path / name, ns=(1, 1))

    with pytest.raises(CorpusError, match=rf"{name} was changed while it was read"):
        encode(tmp_path, tokenizer, tmp_path / name, threads=1, progress=change)
    assert list(tmp_path.glob("out/*")) == []
