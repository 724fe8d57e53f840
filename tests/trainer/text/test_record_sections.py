"""Files of records in parts: the records of all parts are those of the file, wherever it is and however it is cut."""

import codecs
import json
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import fsspec
import pyarrow
import pytest
from pyarrow import parquet

from trainer.storage.remote import url_of
from trainer.text import parquet as parquet_module
from trainer.text import remote_text, stretches
from trainer.text.documents import whole_documents
from trainer.text.memory import EncodingMemory
from trainer.text.parquet_pages import RowGroup, row_groups
from trainer.text.sections import divide, open_section
from trainer.text.sources import Input, Records, open_inputs, open_records
from trainer.text.utf8 import CorpusError

TEXTS = ["one", "", "naïve 中文", "\ufeffmark", "two\nlines\r\n", "x" * 70, '"quoted" \\', " "] * 9
LINES = [json.dumps({"text": text, "n": n}, ensure_ascii=n % 2 == 0) for n, text in enumerate(TEXTS)]
FILES = {
    "a.jsonl": "\n".join(LINES),
    "b.jsonl": "\ufeff" + "".join(f"{line}\n" for line in LINES),
    "c.ndjson": "\r\n".join(["", *LINES, "", " "]),
    "d.jsonl": "\n\n\n".join(LINES) + "\n" * 500,
    "e.jsonl": LINES[0] + "\n",
    "f.jsonl": "",
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretches, "_BLOCK_BYTES", 50)
    monkeypatch.setattr(remote_text, "_REQUEST_BYTES", 90)


@pytest.fixture(params=["folder", "memory"])
def put(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Path], Path]:
    """Where a file is read from."""

    def put(path: Path) -> Path:
        if request.param == "folder":
            return path
        there = Path(f"memory://bucket/{tmp_path.name}/{path.name}")
        fsspec.filesystem("memory").pipe_file(url_of(there), path.read_bytes())
        return there

    return put


def documents_of(inputs: list[Input], size: int) -> list[list[str]]:
    """The documents of each part."""
    parts = divide(inputs, "|", size, at_any_pretoken=True)
    memory = EncodingMemory(None, 1)
    return [
        [
            text
            for section in part
            for text in whole_documents(open_section(section, inputs[section.source]), "|", "strict", 1 << 40, memory)
        ]
        for part in parts
    ]


@pytest.mark.parametrize("name", FILES)
def test_json_lines(put: Callable[[Path], Path], tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name], "utf-8", newline="")
    inputs = open_inputs([put(tmp_path / name)], text_field="text")
    for size in (1, 30, 130, 1000, 10**6):
        parts = documents_of(inputs, size)
        assert [text for part in parts for text in part] == TEXTS[: FILES[name].count("{")]
        many = name[0] in "abcd" and size <= 1000
        assert (len(parts) > 2) == many
        if name != "f.jsonl" and size > 1:  # of one byte each, a line end alone is a part
            assert all(parts)


@pytest.mark.parametrize("rows", [9, 100])
def test_parquet(put: Callable[[Path], Path], tmp_path: Path, rows: int) -> None:
    parquet.write_table(
        pyarrow.table({"n": range(len(TEXTS)), "text": TEXTS}), tmp_path / "a.parquet", row_group_size=rows
    )
    given = put(tmp_path / "a.parquet")
    for inputs in (open_inputs([given], text_field="text"), open_records([given], ["n"])):
        whole = documents_of(inputs, 1 << 30)
        assert len(whole[0]) == len(TEXTS)
        for size in (1, 1000):
            parts = documents_of(inputs, size)
            assert [text for part in parts for text in part] == whole[0]
            assert all(parts)
        assert len(documents_of(inputs, 1)) == -(-len(TEXTS) // rows)


def test_parts_of_several_formats(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("|".join(map(str, range(50))))
    (tmp_path / "b.jsonl").write_text("\n".join(LINES))
    parquet.write_table(pyarrow.table({"text": TEXTS}), tmp_path / "c.parquet", row_group_size=9)
    inputs = open_inputs([tmp_path], text_field="text")
    parts = documents_of(inputs, 250)
    assert [text for part in parts for text in part] == [*map(str, range(50)), *TEXTS, *TEXTS]
    assert len(parts) > 10


def test_errors_name_the_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n' * 9 + b'{"text": "\xff"}\n{"text": "\\ud800"}\n[]\n')
    [given] = open_inputs([path], text_field="text")
    sections = [section for [section] in divide([given], None, 60, at_any_pretoken=False)]
    assert len(sections) == 3
    memory = EncodingMemory(None, 1)
    with pytest.raises(CorpusError, match=r"a\.jsonl from byte 136, line 2, is not UTF-8"):
        [*whole_documents(open_section(sections[2], given), None, "strict", 1 << 40, memory)]
    path.write_bytes(path.read_bytes().replace(b"\xff", b" "))
    [given] = open_inputs([path], text_field="text")
    with pytest.raises(CorpusError, match=r"a\.jsonl from byte 136, record 3, contains a lone surrogate"):
        [*whole_documents(open_section(sections[2], given), None, "strict", 1 << 40, memory)]
    with pytest.raises(CorpusError, match=r"a\.jsonl from byte 136, line 4, has no text"):
        [*whole_documents(open_section(sections[2], given), None, "replace", 1 << 40, memory)]


def test_rows_are_numbered_from_the_first_of_the_file(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": ["a", "b", "c", None]}), tmp_path / "a.parquet", row_group_size=2)
    [given] = open_inputs([tmp_path / "a.parquet"], text_field="text")
    [_, [section]] = divide([given], None, 1, at_any_pretoken=False)
    content = open_section(section, given).content
    assert isinstance(content, Records)
    rows = content.read(1 << 30)
    assert next(rows) == "c"
    with pytest.raises(CorpusError, match="row 4, column 'text': expected text, found NoneType"):
        next(rows)


def test_a_parquet_file_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": TEXTS}), path, row_group_size=2)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[:footer] + bytes(9) + data[footer + 9 :])
    with pytest.raises(CorpusError, match=r"a\.parquet cannot be read: its footer .* is damaged"):
        divide(open_inputs([path], text_field="text"), None, 10, at_any_pretoken=False)


def test_row_groups_in_another_order_are_read_as_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": TEXTS}), path, row_group_size=9)

    def moved(file: BinaryIO) -> list[RowGroup]:
        return [group._replace(place=-number) for number, group in enumerate(row_groups(file))]

    monkeypatch.setattr(parquet_module, "row_groups", moved)
    assert documents_of(open_inputs([path], text_field="text"), 10) == [TEXTS]


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(LINES))
    [given] = open_inputs([path], text_field="text")
    path.write_text("\n".join(LINES[:20]) + "\n")
    content = given.content
    assert isinstance(content, Records)
    with pytest.raises(Exception, match="was changed while it was read"):
        [*content.read(1 << 30)]


def test_a_mark_that_only_begins_a_file(tmp_path: Path) -> None:
    """A byte order mark at the beginning of another part is what it is in the whole: an error, not white space."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + codecs.BOM_UTF8 + b'{"text": "b"}\n')
    [given] = open_inputs([path], text_field="text")
    for size in (5, 1000):
        with pytest.raises(CorpusError, match="is not JSON"):
            documents_of([given], size)
