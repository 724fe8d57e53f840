"""Parquet files of every shape, read whole, and as many rows at a time as fit, whatever they unpack to."""

import io
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from trainer.text.parquet import parquet_rows
from trainer.text.parquet_pages import largest_pages, row_groups
from trainer.text.utf8 import CorpusError

ROWS = 3000
TABLE = pyarrow.table(
    {
        "text": ["a", "naïve 中文", ""] * (ROWS // 3),
        "number": [1, None, 3] * (ROWS // 3),
        "list": [[1, 2], [], None] * (ROWS // 3),
        "struct": [{"text": "x"}, {"text": "y"}, None] * (ROWS // 3),
    }
)
SHAPES: dict[str, dict[str, Any]] = {
    "as pyarrow writes it": {},
    "not packed": {"compression": "none"},
    "groups": {"row_group_size": 7, "compression": "zstd"},
    "many pages": {"data_page_size": 100, "write_batch_size": 10},
    "version 2": {"data_page_version": "2.0", "use_dictionary": False, "compression": "gzip"},
    "checksums": {"write_page_checksum": True, "write_page_index": True, "data_page_size": 1000},
    "deltas": {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    "old": {"version": "1.0", "write_statistics": False, "store_schema": False},
}


@pytest.mark.case("D31")
@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_is_read(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(TABLE, path, **options)
    for memory in (1 << 18, 1 << 30):
        assert [*parquet_rows(path, "text", "number", memory)] == [
            (text, str(number))
            for text, number in zip(*(TABLE[name].to_pylist() for name in ("text", "number")), strict=True)
        ]


@pytest.mark.case("D31")
@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES.keys())
def test_the_pages_add_up_to_what_the_footer_says(options: dict[str, Any]) -> None:
    """By pyarrow's own reading of the footer: unpacked pages and their headers, which have dozens of bytes."""
    file = io.BytesIO()
    parquet.write_table(TABLE.select(["text"]), file, **options)
    footer = parquet.read_metadata(file)
    largest = largest_pages(file, ["text"], row_groups(file))
    assert len(largest) == footer.num_row_groups
    for group, page in enumerate(largest):
        chunk = footer.row_group(group).column(0)
        assert page < chunk.total_uncompressed_size
        if "data_page_size" not in options:  # a page of values, and perhaps one of a dictionary
            assert page > (chunk.total_uncompressed_size - 300) / 2
    assert largest_pages(file, ["tex"], row_groups(file)) == [0] * footer.num_row_groups


@pytest.mark.case("D31")
@pytest.mark.parametrize(
    "options",
    [
        {"dictionary_pagesize_limit": 1 << 30},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    ],
)
def test_a_value_that_comes_often_is_in_memory_a_few_times(tmp_path: Path, options: dict[str, Any]) -> None:
    """100 MB of text from a file of some kilobytes."""
    path, value = tmp_path / "a.parquet", "x" * (1 << 20)
    parquet.write_table(pyarrow.table({"text": [value] * 100}), path, **options)
    assert path.stat().st_size < 100_000
    held = pyarrow.total_allocated_bytes()
    most = 0
    for text, _ in parquet_rows(path, "text", None, 32 << 20):
        assert text == value
        most = max(most, pyarrow.total_allocated_bytes() - held)
    assert most < 32 << 20
    with pytest.raises(CorpusError, match=r"a page of the column 'text' has 1,04\d,\d{3} bytes.*--memory-limit"):
        next(parquet_rows(path, "text", None, 2 << 20))


@pytest.mark.case("D31")
def test_a_page_that_unpacks_to_a_thousand_times_its_size_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": ["x" * (1 << 20)] * 64})
    parquet.write_table(table, path, use_dictionary=False, compression="zstd")
    assert path.stat().st_size < 100_000
    with pytest.raises(CorpusError, match=r"a page of the column 'text' has 67,\d{3},\d{3} bytes"):
        next(parquet_rows(path, "text", None, 64 << 20))


@pytest.mark.parametrize(
    ("column", "label", "message"),
    [
        (
            "body",
            None,
            r"has no column 'body' \(it has 'text', 'number', 'list', 'struct'\); name one with --text-field",
        ),
        ("text", "kind", "has no column 'kind' to group by"),
        ("number", None, "row 1, column 'number': expected text, found int"),
        ("list", None, "row 1, column 'list': expected text, found list"),
        ("struct", None, "row 1, column 'struct': expected text, found dict"),
    ],
)
def test_what_is_not_text_is_named(tmp_path: Path, column: str, label: str | None, message: str) -> None:
    parquet.write_table(TABLE, tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=rf"a\.parquet.*{message}"):
        [*parquet_rows(tmp_path / "a.parquet", column, label, 1 << 30)]


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": ["a", None]}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"a\.parquet, row 2, column 'text': expected text, found NoneType"):
        [*parquet_rows(tmp_path / "a.parquet", "text", None, 1 << 30)]
