"""Sizes as options spell them, and of files. It loads little, since every command imports it."""

from pathlib import Path

from trainer.errors import UsageError
from trainer.storage.remote import size_and_version, url_of

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes in a number such as `500M`, `8G` or `1_000_000`; units are powers of 1024.

    Raises:
        UsageError: If it is not such a number.
    """
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = _UNITS.get(number[-1:], 1)
    try:
        size = int(float(number.rstrip("KMGT")) * unit)
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise UsageError(f"{text!r} is not a size; use 500M, 8G or a number of bytes")
    return size


def parse_limit(text: str | None) -> int | None:
    """`parse_size` of an option that may not be set."""
    return None if text is None else parse_size(text)


def size_of(path: Path) -> int:
    """Bytes of a file as it is stored; 0 where that is not known, as of a pipe.

    Raises:
        OSError: It is in an object store that cannot be asked.
    """
    if url_of(path) is not None:
        return size_and_version(path)[0]
    return path.stat().st_size if path.is_file() else 0
