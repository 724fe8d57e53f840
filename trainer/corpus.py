"""Reading text files in chunks of bounded size, byte for byte: newlines, NUL and a byte order mark stay as they are."""

import codecs
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trainer.errors import TrainerError, UsageError

_CHUNK_BYTES = 1 << 20

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


def total_bytes(paths: Sequence[Path]) -> int:
    """The size of the files together, in bytes.

    Raises:
        UsageError: If there are no files, or one is a folder.
        CorpusError: If one is missing or may not be read.
    """
    if not paths:
        raise UsageError("no text files are given; name at least one")
    total = 0
    for path in paths:
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name the text files in it, such as {path / '*.txt'}")
        try:
            total += path.stat().st_size
        except OSError as error:
            raise CorpusError(f"{path} cannot be read: {error.strerror}") from None
        if not os.access(path, os.R_OK):
            raise CorpusError(f"{path} may not be read by this user; its permissions forbid it")
    return total


def read_chunks(path: Path, on_bytes: Callable[[bytes], None] | None = None) -> Iterator[str]:
    """The text of a file in chunks of about a mebibyte that never cut a character.

    Args:
        path: The file.
        on_bytes: Called with the bytes of every chunk, in order.

    Raises:
        CorpusError: If the file cannot be read, is packed, or is not UTF-8; names the first byte that is wrong.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    decoded = 0
    try:
        with path.open("rb") as file:
            while True:
                data = file.read(_CHUNK_BYTES)
                if not decoded:
                    check_signature(path, data)
                if on_bytes is not None:
                    on_bytes(data)
                # Bytes of a character that the last chunk cut are still in the decoder.
                pending = len(decoder.getstate()[0])
                try:
                    text = decoder.decode(data, final=not data)
                except UnicodeDecodeError as error:
                    raise invalid_utf8(path, decoded - pending + error.start, error) from None
                decoded += len(data)
                if text:
                    yield text
                if not data:
                    return
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from None


def check_signature(path: Path, data: bytes) -> None:
    """Refuse a file whose first bytes say that it is no UTF-8 text.

    Raises:
        CorpusError: Says what it seems to be, and how to convert it.
    """
    for signature, what in _SIGNATURES.items():
        if data.startswith(signature):
            raise CorpusError(f"{path} is not UTF-8 text: it seems to be {what}")


def invalid_utf8(path: Path, offset: int, error: UnicodeDecodeError) -> CorpusError:
    """The error for a file that is not UTF-8 at an offset."""
    return CorpusError(
        f"{path} is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {offset} is wrong ({error.reason}); "
        "convert the file first, for example from Latin-1: iconv -f LATIN1 -t UTF-8"
    )
