"""A token file that is left and gone on with is that of one pass."""

from pathlib import Path

import numpy as np
import pytest

from shared.bpe import PATTERNS, Tokenizer
from shared.bpe.vocabulary import AddedToken, Vocabulary
from trainer.tokens.token_file import TokenFile, TokenFileError
from trainer.tokens.writer import TokenFileWriter, WriteError, Written

TOKENIZER = Tokenizer(
    Vocabulary({byte: bytes([byte]) for byte in range(256)}, (), (AddedToken(256, "<end>"),), PATTERNS["gpt2"])
)


def writer(folder: Path, written: Written | None = None) -> TokenFileWriter:
    return TokenFileWriter(folder / "train.bin", TOKENIZER, 256, partial=folder / "partial.bin", written=written)


def test_what_was_left_is_gone_on_with(tmp_path: Path) -> None:
    with writer(tmp_path) as first:
        first.write(np.array([97, 98, 256]), 1)
        first.write(np.array([99]), 0, 1)
        written = first.sync()
        first.write(np.array([1, 2, 3]), 0)  # lost: nothing says how far it came
    assert (written.count, written.documents, written.bytes) == (4, 1, 3)
    with writer(tmp_path, written) as second:
        second.write(np.array([256]), 1)
        manifest = second.commit(())
    (tmp_path / "whole").mkdir()
    with writer(tmp_path / "whole") as whole:
        whole.write(np.array([97, 98, 256, 99, 256]), 2)
        assert whole.commit(()) == manifest
    assert TokenFile.open(tmp_path, "train").tokens.tolist() == [97, 98, 256, 99, 256]
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["train.bin", "train.json"]


@pytest.mark.parametrize("data", [b"", b"a\0b", b"a\0c\0", None])
def test_what_is_not_as_it_was_left_is_refused(tmp_path: Path, data: bytes | None) -> None:
    with writer(tmp_path) as first:
        first.write(np.array([97, 98]), 0)
        written = first.sync()
    if data is None:
        (tmp_path / "partial.bin").unlink()
        (tmp_path / "train.bin").write_bytes(b"another")
    else:
        (tmp_path / "partial.bin").write_bytes(data)
    with pytest.raises(TokenFileError, match=r"partial\.bin does not contain the 2 tokens .*without --resume"):
        writer(tmp_path, written)
    assert data is not None or (tmp_path / "train.bin").read_bytes() == b"another"


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"none/partial\.bin cannot be written: No such file"):
        writer(tmp_path / "none")
