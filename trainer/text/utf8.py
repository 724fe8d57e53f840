"""Finding and replacing what is not UTF-8, with errors that say how to convert it."""

import codecs
from pathlib import Path

import numpy as np

from shared.bpe.training import Errors, first_invalid, replace_invalid
from trainer.errors import TrainerError
from trainer.storage.remote import display_path

_UTF16 = "a UTF-16 or UTF-32 file; convert it first: iconv -t UTF-8"
# The first bytes of files that are not UTF-8 text, and what to do about them.
_SIGNATURES = {
    codecs.BOM_UTF16_LE: _UTF16,
    codecs.BOM_UTF16_BE: _UTF16,
    b"\x00\x00\xfe\xff": _UTF16,
    b"\x1f\x8b": "gzip-compressed; decompress it first: gunzip -c",
    b"\x28\xb5\x2f\xfd": "zstd-compressed; decompress it first: zstd -dc",
    b"\xfd7zXZ\x00": "xz-compressed; decompress it first: xz -dc",
    b"BZh": "bzip2-compressed; decompress it first: bunzip2 -c",
    b"PK\x03\x04": "a zip archive; extract it first",
}


class CorpusError(TrainerError):
    """A text file that cannot be read as UTF-8."""


def has_text(data: bytes) -> bool:
    """Whether there is anything but ASCII white space; where there is not, no document follows the last separator."""
    return bool(data) and not data.isspace()


def check_signature(path: Path, data: bytes) -> None:
    """Refuse a file whose first bytes show that it is not UTF-8 text.

    Raises:
        CorpusError: Says what the file seems to be, and how to convert it.
    """
    for signature, what in _SIGNATURES.items():
        if data.startswith(signature):
            raise CorpusError(f"{display_path(path)} is not UTF-8 text: it seems to be {what}")


def valid_utf8(data: bytes, name: str, offset: int, errors: Errors) -> tuple[bytes, int]:
    """A part of a text as UTF-8, and how many U+FFFD were put in place of other bytes.

    Args:
        data: The part.
        name: What errors call the text.
        offset: Where the part begins in it.
        errors: `strict` or `replace`.

    Raises:
        CorpusError: If the part is not UTF-8 and must be.
    """
    if first_invalid(np.frombuffer(data, dtype=np.uint8), 0, len(data)) < 0:
        return data, 0
    if errors == "replace":
        return replace_invalid(data)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{name} is not UTF-8: byte 0x{data[error.start]:02x} at offset {offset + error.start} is invalid "
            f"({error.reason}); convert the file first, for example from Latin-1: iconv -f LATIN1 -t UTF-8, or replace "
            "such bytes with U+FFFD (--errors replace)"
        ) from None
    raise AssertionError


def valid_record(text: str, name: str, number: int, errors: Errors) -> tuple[str, int]:
    """The text of a record without lone surrogates, as JSON may spell them, and how many U+FFFD replace them.

    Raises:
        CorpusError: If there is one and must not be; names the record.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        if errors == "strict":
            raise CorpusError(
                f"{name}, record {number}, contains a lone surrogate, which UTF-8 cannot represent; replace it with "
                "U+FFFD (--errors replace)"
            ) from None
        data, replaced = replace_invalid(text.encode(errors="surrogatepass"))
        return data.decode(), replaced
    return text, 0
