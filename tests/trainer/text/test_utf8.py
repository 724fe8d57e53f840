"""What is no UTF-8 text is refused with a hint."""

import gzip
from pathlib import Path

import pytest

from trainer.text.utf8 import CorpusError, check_signature


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ("text".encode("utf-16"), "iconv"),
        (b"\xfe\xff\x00t", "iconv"),
        ("text".encode("utf-32"), "iconv"),
        (gzip.compress(b"text", mtime=0), "gunzip"),
        (b"PK\x03\x04rest", "zip archive"),
    ],
)
def test_B06_other_encodings_and_packed_files_get_a_hint(data: bytes, hint: str) -> None:
    with pytest.raises(CorpusError, match=hint):
        check_signature(Path("f"), data)


def test_text_is_fine() -> None:
    check_signature(Path("f"), "\ufeffhello".encode())
    check_signature(Path("f"), b"1234567BZh")
