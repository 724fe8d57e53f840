"""The token files of a directory, verified or opened to read a part."""

import shutil
from pathlib import Path

import pytest

from trainer.errors import TrainerError
from trainer.tokens.dataset import open_training_data
from trainer.tokens.token_file import TokenFileError


@pytest.fixture
def folder(token_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(token_folder, tmp_path / "tokens")


def test_a_damaged_file_is_found_where_files_are_verified(folder: Path) -> None:
    content = bytearray((folder / "train-00000.bin").read_bytes())
    content[-2] ^= 1
    (folder / "train-00000.bin").write_bytes(content)
    with pytest.raises(TokenFileError, match=r"train-00000\.bin is not what was written"):
        open_training_data(folder)


def test_what_is_not_read_is_not_checked(folder: Path) -> None:
    """So that a look at the first tokens of a large file takes no longer than that of a small one."""
    content = bytearray((folder / "val-00000.bin").read_bytes())
    content[-2:] = b"\xff\xff"
    (folder / "val-00000.bin").write_bytes(content)
    validation = open_training_data(folder, verify=False).validation
    assert validation is not None
    assert len(validation.read(0, 10)) == 10
    with pytest.raises(TokenFileError, match="beyond a vocabulary of 290"):
        validation.read(0, len(validation))


def test_a_validation_file_of_one_token_is_too_short(folder: Path) -> None:
    validation = open_training_data(folder).validation
    assert validation is not None
    text = (folder / "val.json").read_text()
    (folder / "val.json").write_text(text.replace(f'"count": {len(validation)}', '"count": 1'))
    (folder / "val-00000.bin").write_bytes((folder / "val-00000.bin").read_bytes()[:2])
    with pytest.raises(TrainerError, match=r"val\.json: need at least 2 tokens, found 1"):
        open_training_data(folder)
