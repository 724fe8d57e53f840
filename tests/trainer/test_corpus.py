import gzip
import os
from pathlib import Path

import pytest

from trainer import corpus
from trainer.corpus import CorpusError, read_chunks, total_bytes
from trainer.errors import UsageError


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks so small that every edge falls somewhere, as it does in a large file."""
    monkeypatch.setattr(corpus, "_CHUNK_BYTES", 7)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "data",
    [
        b"",
        "\ufeffhello \ufeff hello".encode(),  # B07: a byte order mark is kept, here and everywhere
        b"a\r\nb\rc\n" * 10,  # B08
        b"a\x00b\x00\x00c\n" * 5,  # B09
        "é\U0001f600字".encode() * 20,  # B15: characters cut by chunks
    ],
)
def test_B07_B08_B09_B15_bytes_are_never_altered(tmp_path: Path, data: bytes) -> None:
    seen = bytearray()
    chunks = list(read_chunks(write(tmp_path / "f", data), seen.extend))
    assert "".join(chunks).encode() == data == seen
    assert max(map(len, chunks), default=0) <= 10


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"good \xff\xfe line\n" * 10, 5),
        (("é" * 20 + "x").encode() + b"\xe9t\xe9", 41),  # Latin-1
        (b"a" * 6 + b"\xf0\x9f\x98", 6),  # ends within a character
        (b"a" * 5 + b"\xf0\x9f\xff\xff", 5),  # wrong only in the next chunk
        (b"a\xed\xa0\x80", 1),  # a surrogate
    ],
)
def test_B06_invalid_utf8_is_named_by_path_and_offset(tmp_path: Path, data: bytes, offset: int) -> None:
    path = write(tmp_path / "third.txt", data)
    with pytest.raises(CorpusError, match=rf"third\.txt is not UTF-8: byte 0x{data[offset]:02x} at offset {offset} "):
        list(read_chunks(path))


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ("text".encode("utf-16"), "iconv"),
        (b"\xfe\xff\x00t", "iconv"),
        ("text".encode("utf-32"), "iconv"),
        (gzip.compress(b"text"), "gunzip"),
        (b"PK\x03\x04rest", "zip archive"),
    ],
)
def test_B06_other_encodings_and_packed_files_get_a_hint(tmp_path: Path, data: bytes, hint: str) -> None:
    with pytest.raises(CorpusError, match=hint):
        list(read_chunks(write(tmp_path / "f", data)))


def test_signatures_count_at_the_beginning_only(tmp_path: Path) -> None:
    text = "1234567BZh"
    assert "".join(read_chunks(write(tmp_path / "f", text.encode()))) == text


def test_total_is_the_sum_of_sizes(tmp_path: Path) -> None:
    assert total_bytes([write(tmp_path / "a", b"abc"), write(tmp_path / "b", b"")]) == 3


def test_B01_no_files_and_folders_are_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no text files"):
        total_bytes([])
    with pytest.raises(UsageError, match="is a folder"):
        total_bytes([tmp_path])
    with pytest.raises(CorpusError, match="No such file"):
        total_bytes([tmp_path / "nothing"])


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
def test_files_that_may_not_be_read_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "secret", b"x")
    path.chmod(0)
    with pytest.raises(CorpusError, match=r"secret may not be read"):
        total_bytes([path])


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"from a pipe")
    os.close(writer)
    path = Path(f"/dev/fd/{reader}")
    assert total_bytes([path]) == 0
    assert "".join(read_chunks(path)) == "from a pipe"
    os.close(reader)
