"""Writing whole files."""

import errno
import os
from pathlib import Path

import pytest

from shared.bpe import TokenizerError
from shared.system.files import read_json, read_text, write_text


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a.json").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as told:
        write_text(tmp_path / "a.json", "new")
    assert told.value.filename == str(tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


@pytest.mark.case("D22")
@pytest.mark.timeout(60)
def test_a_fifo_and_a_device_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read: expected a regular file, found a FIFO"):
        read_json(tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match="expected a regular file, found a device"):
        read_text(Path("/dev/zero"))
    with pytest.raises(TokenizerError, match="cannot be read: there can be no file of this name"):
        read_text(tmp_path / "a\0b")


@pytest.mark.case("D22")
def test_a_number_of_too_many_digits_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": ' + "1" * 5000 + "}")
    with pytest.raises(TokenizerError, match=r"a\.json cannot be read as JSON: Exceeds the limit"):
        read_json(tmp_path / "a.json")
