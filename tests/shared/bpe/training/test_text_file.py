"""Files in chunks: the same for any size of reads, and no crash where the file is written to meanwhile."""

import os
import random
from pathlib import Path

import pytest

from shared.bpe import SourceError
from shared.bpe.training import Specials, TextFile, text_file


@pytest.mark.parametrize("specials", [[], [b"<|endoftext|>"], [b"ab cd ef gh", b"d"]])
@pytest.mark.parametrize("searched", [1, 7, 100])
def test_chunks_do_not_depend_on_what_is_searched_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, specials: list[bytes], searched: int
) -> None:
    parts = ["ab", " ", "cd", "ef gh", "\n", "\n\n", "é", "中文", "12", "x" * 300, "<|endoftext|>", "\U0001f600."]
    path = tmp_path / "text.txt"
    path.write_bytes("".join(random.Random(3).choices(parts, k=2_000)).encode())
    whole = [chunk.end for chunk in TextFile(path, 10).chunks(Specials(specials), 0)]
    monkeypatch.setattr(text_file, "SEARCH_BYTES", searched)
    chunks = list(TextFile(path, 10).chunks(Specials(specials), 0))
    assert [chunk.end for chunk in chunks] == whole
    assert len(whole) > 100
    assert b"".join(chunk.read().tobytes() for chunk in chunks) == path.read_bytes()


def test_a_file_that_gets_shorter_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"some words\n" * 100_000)
    chunks = TextFile(path, 1 << 16).chunks(Specials(), 0)
    first, second = next(chunks), next(chunks)
    os.truncate(path, first.end)
    assert len(first.read()) == first.size
    with pytest.raises(SourceError, match=r"text\.txt was changed while it was read"):
        second.read()
    with pytest.raises(SourceError, match="changed"):
        next(chunks)


@pytest.mark.parametrize("change", [b"other words\n", b""])
def test_a_file_that_is_written_to_is_an_error(tmp_path: Path, change: bytes) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"some words\n" * 1000)
    chunks = TextFile(path, 1 << 10).chunks(Specials(), 0)
    next(chunks)
    with path.open("r+b") as file:
        file.write(change)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match="changed while it was read"):
        list(chunks)
