"""Files of a tokenizer that cannot be read."""

import os
from pathlib import Path

import pytest

from shared.bpe import TokenizerError
from shared.bpe.formats.reading import read_json, read_text


@pytest.mark.case("D22")
@pytest.mark.timeout(60)
def test_a_fifo_and_a_device_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read: expected a regular file, found a FIFO"):
        read_json(tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match="expected a regular file, found a device"):
        read_text(Path("/dev/zero"))
    with pytest.raises(TokenizerError, match="cannot be read: not a valid file name"):
        read_text(tmp_path / "a\0b")


@pytest.mark.case("D22")
def test_a_number_of_too_many_digits_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": ' + "1" * 5000 + "}")
    with pytest.raises(TokenizerError, match=r"a\.json cannot be read as JSON: Exceeds the limit"):
        read_json(tmp_path / "a.json")
