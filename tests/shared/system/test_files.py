"""Reading and writing whole files."""

import errno
import os
from pathlib import Path

import pytest

from shared.system.files import parse_json_object, write_text


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a.json").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write_text(tmp_path / "a.json", "new")
    assert raised.value.filename == str(tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'{"a": 1', "is not JSON: line 1, column 8"),
        (b'{"a": "\xff"}', "is not UTF-8: byte 7 is 0xff"),
        ('{"a": 1, "a": 2}', "has the key 'a' twice in one object"),
        ("[" * 100_000, "is nested too deeply"),
        ("[]", "must hold a JSON object, not list"),
        ('{"a": ' + "1" * 5000 + "}", "cannot be read as JSON: Exceeds the limit"),
    ],
)
def test_what_is_not_a_json_object_is_refused_with_the_reason(data: str | bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}"):
        parse_json_object(data)
