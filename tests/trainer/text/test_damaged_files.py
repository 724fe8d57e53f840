"""Files that are cut off, damaged or spoilt: read whole or refused by name, by every command, and never read short."""

import gzip
import io
import json
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from shared.bpe import Tokenizer
from shared.system.errors import escape_unprintable
from trainer import cli
from trainer.evaluation.documents import DocumentReader
from trainer.settings.encode import EncodeSettings
from trainer.settings.tokenizer_comparison import ComparisonSettings
from trainer.settings.vocab import VocabSettings
from trainer.text.documents import whole_documents
from trainer.text.memory import EncodingMemory
from trainer.text.sources import open_inputs
from trainer.text.utf8 import CorpusError
from trainer.tokenizer.comparison import compare_tokenizers
from trainer.tokenizer.train import train_tokenizer
from trainer.tokens.encode import encode_files

END = "<|endoftext|>"
DOCUMENTS = [f"the cat number {number} sat on the mat, naïve 中文\n" for number in range(300)]
SKIPPABLE = bytes.fromhex("502a4d1804000000") + b"abcd"


def content_of(name: str, documents: list[str] = DOCUMENTS) -> bytes:
    """Documents in the format of a name, not packed."""
    if ".jsonl" in name:
        return "".join(json.dumps({"text": text}) + "\n" for text in documents).encode()
    if name.endswith(".parquet"):
        file = io.BytesIO()
        parquet.write_table(pyarrow.table({"text": documents}), file, row_group_size=100, compression="zstd")
        return file.getvalue()
    return END.join(documents).encode()


def pack(name: str, data: bytes) -> bytes:
    if name.endswith(".zst"):
        return zstandard.ZstdCompressor(write_checksum=True).compress(data)
    return gzip.compress(data) if name.endswith(".gz") else data


def read_whole(path: Path) -> list[str]:
    """The documents of a file, as a comparison of tokenizers reads them."""
    [opened] = open_inputs([path], text_field="text")
    return [*whole_documents(opened, END, "strict", 1 << 40, EncodingMemory(None, 1))]


def read_or_refuse(path: Path) -> tuple[list[str], str | None]:
    """The documents, or why they cannot be read: in words that name the file."""
    try:
        return read_whole(path), None
    except CorpusError as error:
        refusal = str(error)
    assert str(path) in refusal
    return [], refusal


@pytest.fixture(params=["vocab", "encode", "evaluate", "evaluate-tokenizers"])
def command(request: pytest.FixtureRequest, tmp_path: Path, tokenizer_folder: Path) -> Callable[[Path], object]:
    """What each command does with a file; evaluating without its model."""
    tokenizer = Tokenizer.from_files(tokenizer_folder)
    reader = DocumentReader(tokenizer, END, "text", "strict", EncodingMemory(None, 1), "input")
    settings = ComparisonSettings(max_size="1T", threads=1)
    return {
        "vocab": lambda path: train_tokenizer([path], tmp_path / "out", VocabSettings(vocab_size=300)),
        "encode": lambda path: encode_files([path], tokenizer, tmp_path / "out", EncodeSettings(val_fraction=0.1)),
        "evaluate": lambda path: [part for file in reader.open([path]) for part in file.read()],
        "evaluate-tokenizers": lambda path: compare_tokenizers(
            [tokenizer_folder], [path], settings, lambda *_: lambda *_: None
        ),
    }[request.param]


DAMAGES = {
    "the last byte": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "a stub": lambda data: data[:9],
    "all": lambda data: b"",
    "of a second frame": lambda data: data + data[:-3],
    "of a second frame, but for its head": lambda data: data + data[:3],
    "junk behind": lambda data: data + b"junk",
    "a wrong byte": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 255]) + data[len(data) // 2 + 1 :]
    ),
}


@pytest.mark.case("D32")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["a.txt.zst", "a.jsonl.zst", "a.txt.gz", "a.jsonl.gz"])
def test_packed_files_that_are_cut_off_are_refused_by_name(
    tmp_path: Path, command: Callable[[Path], object], name: str, damage: str
) -> None:
    (tmp_path / name).write_bytes(DAMAGES[damage](pack(name, content_of(name))))
    message = "cannot be decompressed: .*; it is truncated or damaged"
    if damage == "a wrong byte":  # which is found at the end in the worst case, when a line has been read
        message += "|, line .* is not JSON|is not UTF-8"
    with pytest.raises(CorpusError, match=rf"{name}.*({message})"):
        command(tmp_path / name)
    assert not (tmp_path / "out").exists()


@pytest.mark.case("D32")
@pytest.mark.parametrize("name", ["a.txt.zst", "a.txt.gz"])
def test_a_held_out_file_is_unpacked_too(tmp_path: Path, text_file: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pack(name, content_of(name)))
    report = train_tokenizer(
        [text_file], tmp_path / "out", VocabSettings(vocab_size=300, held_out=str(tmp_path / name))
    )
    assert report.held_out is not None
    assert b"".join(report.held_out.parts) == content_of(name)
    (tmp_path / name).write_bytes(pack(name, content_of(name))[:-1])
    with pytest.raises(CorpusError, match=f"{name} cannot be decompressed"):
        train_tokenizer([text_file], tmp_path / "other", VocabSettings(vocab_size=300, held_out=str(tmp_path / name)))


@pytest.mark.case("D32")
@pytest.mark.parametrize("name", ["a.txt.zst", "a.jsonl.zst", "a.txt.gz", "a.jsonl.gz"])
def test_all_frames_are_read(tmp_path: Path, name: str) -> None:
    """As `zstd -d` and `gunzip` do (RFC 8878, 3.1; RFC 1952, 2.2): frames, empty and skippable ones among them."""
    data = content_of(name)
    middle = data.index(b"\n", len(data) // 2) + 1
    parts = [b"", data[:middle], b"", data[middle:]]
    between = SKIPPABLE if name.endswith(".zst") else b""
    (tmp_path / name).write_bytes(between + between.join(pack(name, part) for part in parts) + between)
    assert read_whole(tmp_path / name) == DOCUMENTS


@pytest.mark.case("D32")
def test_a_frame_of_a_window_that_is_too_large_is_refused(tmp_path: Path) -> None:
    """RFC 8878, 3.1.1.1.2: up to 8 MB must be supported, and what is more may be refused."""
    parameters = zstandard.ZstdCompressionParameters(window_log=30)
    with zstandard.open(tmp_path / "a.txt.zst", "wb", zstandard.ZstdCompressor(compression_params=parameters)) as file:
        file.write(b"text")
    with pytest.raises(CorpusError, match=r"a\.txt\.zst cannot be decompressed: .*too much memory"):
        read_whole(tmp_path / "a.txt.zst")


def run(*arguments: object) -> int:
    """The status of a command, in this process."""
    with pytest.raises(SystemExit) as stopped:
        cli.app.meta([*map(str, arguments)])
    return int(stopped.value.code)  # type: ignore[arg-type]


@pytest.mark.case("D32")
def test_the_status_is_1(tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt.zst").write_bytes(pack("a.zst", content_of("a.txt"))[:-1])
    handlers = logging.getLogger().handlers[:]
    try:
        for arguments in (
            ("vocab", tmp_path / "a.txt.zst", "--vocab-size", 300, "--output", tmp_path / "out"),
            ("encode", tmp_path / "a.txt.zst", "--tokenizer", tokenizer_folder, "--output", tmp_path / "out"),
            ("evaluate-tokenizers", tmp_path / "a.txt.zst", "--tokenizer", tokenizer_folder),
        ):
            assert run(*arguments) == 1
    finally:
        logging.getLogger().handlers[:] = handlers
    assert not (tmp_path / "out").exists()
    assert capsys.readouterr().out == ""


NAMES = ["a.txt", "a.jsonl", "a.txt.gz", "a.jsonl.gz", "a.txt.zst", "a.jsonl.zst", "a.parquet"]
FEW = DOCUMENTS[:12]
WHOLE = {name: pack(name, content_of(name, FEW)) for name in NAMES}


@pytest.mark.case("D32")
@pytest.mark.parametrize("name", NAMES)
def test_bytes_cut_anywhere(tmp_path: Path, name: str) -> None:
    """What is not packed may be whole where it ends; what is packed never is."""
    data, path = WHOLE[name], tmp_path / name
    for size in range(0, len(data), 1 if len(data) < 500 else 7):
        path.write_bytes(data[:size])
        read, refusal = read_or_refuse(path)
        if refusal is None:
            joined = {"a.txt": END, "a.jsonl": ""}[name]
            assert joined.join(FEW).startswith(joined.join(read))


@pytest.mark.case("D32")
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_bytes_changed_anywhere(tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject) -> None:
    """Junk behind, before and within: a sentence that names the file, or text."""
    whole, path = WHOLE[name], tmp_path_factory.mktemp("fuzz") / name
    begin = data.draw(st.integers(0, len(whole)))
    junk = data.draw(st.binary(max_size=20))
    spoilt = whole[:begin] + junk + whole[begin + data.draw(st.integers(0, len(junk))) :]
    path.write_bytes(spoilt)
    read, refusal = read_or_refuse(path)
    if refusal is None and name.endswith((".gz", ".zst")):
        # Some bytes of a header mean nothing to the text, such as the time in gzip's.
        assert "".join(read) == "".join(FEW)


LINES = {
    "an array": "[1, 2]",
    "text": '"text"',
    "null": "null",
    "no text": '{"text": null}',
    "no field": '{"body": "text"}',
    "a number": '{"text": 1e400}',
    "many digits": '{"text": ' + "9" * 5000 + "}",
    "a nest": '{"text": ' + "[" * 100_000,
    "no end": '{"text": "a',
    "two objects": '{"text": "a"} {"text": "b"}',
    "a control": '{"text": "a\x01"}',
    "an escape": '{"text": "\\u12"}',
    "names that move the cursor": '{"\\u001b[2J\\u009b": 1}',
    "many names": json.dumps({f"name {number}" * 100: 1 for number in range(1000)}),
    "NUL": "\0\0\0\0\0\0\0",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_wrong_lines_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n\n' + line + '\n{"text": "fine"}\n')
    with pytest.raises(CorpusError, match=r"a\.jsonl, line 3, ") as raised:
        read_whole(path)
    assert len(str(raised.value)) < 2000
    assert escape_unprintable(str(raised.value)) == str(raised.value)


@pytest.mark.parametrize("data", [b'{"text": "\xff"}\n', '{"text": "a"}\n'.encode("utf-16"), b"\xef\xbb\xbf\xff\n"])
def test_lines_that_are_not_utf8_are_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(CorpusError, match=r"a\.jsonl, line 1, is not UTF-8: invalid start byte at byte \d"):
        read_whole(tmp_path / "a.jsonl")


def test_lines_are_read_where_half_of_the_memory_is_taken_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.text.memory.total_memory", lambda: 1 << 20)
    (tmp_path / "a.jsonl").write_text('{"text": "a line"}\n')
    assert read_whole(tmp_path / "a.jsonl") == ["a line"]


def test_numbers_and_depth_that_are_not_read_do_no_harm(tmp_path: Path) -> None:
    lines = ['{"x": 1e999, "text": "a"}', '{"x": -Infinity, "text": "b"}', '{"x": [[[[[{}]]]]], "text": "c"}']
    (tmp_path / "a.jsonl").write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8")
    assert read_whole(tmp_path / "a.jsonl") == ["a", "b", "c"]


def test_lone_surrogates_are_named_or_replaced(tmp_path: Path, command: Callable[[Path], object]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "x \\ud800 y"}\n')
    with pytest.raises(CorpusError, match=r"a\.jsonl.*(record 2, contains a lone surrogate|is not UTF-8: byte 0xed)"):
        command(tmp_path / "a.jsonl")
    [opened] = open_inputs([tmp_path / "a.jsonl"], text_field="text")
    texts = [*whole_documents(opened, END, "replace", 1 << 40, EncodingMemory(None, 1))]
    assert texts == ["fine", "x \ufffd\ufffd\ufffd y"]


def test_text_in_parquet_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    """The type says UTF-8, and the bytes are others: nothing checks them when they are written."""
    wrong = pyarrow.StringArray.from_buffers(
        2, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pyarrow.py_buffer(b"a\xff\xfe")
    )
    parquet.write_table(pyarrow.table({"text": wrong}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"a\.parquet, rows 1 to 2, column 'text': not UTF-8"):
        read_whole(tmp_path / "a.parquet")


def test_random_bytes_under_every_name(tmp_path: Path) -> None:
    draw = random.Random(0)
    for name in NAMES:
        for _ in range(50):
            (tmp_path / name).write_bytes(b"\xff" + draw.randbytes(draw.choice([1, 9, 100, 5000])))
            with pytest.raises(CorpusError, match=name):
                read_whole(tmp_path / name)
