"""What is no UTF-8 text, and how to say so."""

import codecs
from pathlib import Path

from trainer.errors import TrainerError

_UTF16 = "a UTF-16 or UTF-32 file; convert it first: iconv -t UTF-8"
# How files begin that are no UTF-8 text, and what to do about it.
_SIGNATURES = {
    codecs.BOM_UTF16_LE: _UTF16,
    codecs.BOM_UTF16_BE: _UTF16,
    b"\x00\x00\xfe\xff": _UTF16,
    b"\x1f\x8b": "gzip-compressed; unpack it first: gunzip -c",
    b"\x28\xb5\x2f\xfd": "zstd-compressed; unpack it first: zstd -dc",
    b"\xfd7zXZ\x00": "xz-compressed; unpack it first: xz -dc",
    b"BZh": "bzip2-compressed; unpack it first: bunzip2 -c",
    b"PK\x03\x04": "a zip archive; unpack it first",
}


class CorpusError(TrainerError):
    """A text file that cannot be read as UTF-8."""


def holds_text(data: bytes) -> bool:
    """Whether there is anything but ASCII's white space; what has none is no document behind the last separator."""
    return bool(data) and not data.isspace()


def check_signature(path: Path, data: bytes) -> None:
    """Refuse a file whose first bytes say that it is no UTF-8 text.

    Raises:
        CorpusError: Says what it seems to be, and how to convert it.
    """
    for signature, what in _SIGNATURES.items():
        if data.startswith(signature):
            raise CorpusError(f"{path} is not UTF-8 text: it seems to be {what}")


def invalid_utf8(name: str, offset: int, error: UnicodeDecodeError) -> CorpusError:
    """The error for an input that is not UTF-8 at an offset."""
    return CorpusError(
        f"{name} is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {offset} is wrong ({error.reason}); "
        "convert the file first, for example from Latin-1: iconv -f LATIN1 -t UTF-8, or allow it (--errors replace)"
    )
