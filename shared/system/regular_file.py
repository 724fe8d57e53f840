"""Reading files that strangers may have made: only regular ones, and only up to a size."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

LARGEST_RECORD = 256 << 20
"""Bytes that a JSON file with a record of what was done may have: a manifest may list a million files of text."""

_KINDS = {stat.S_IFDIR: "directory", stat.S_IFIFO: "FIFO", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. A FIFO would wait for its writer, and a device may have no end: both are refused.

    Raises:
        OSError: It cannot be opened, or is no regular file; `strerror` says which.
    """
    try:
        # With this flag, opening waits for nothing; reading a regular file does not know it.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a null character, or half of a surrogate pair
        raise OSError(errno.EINVAL, f"there can be no file of this name ({error})", str(path)) from error
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        found = _KINDS.get(kind, "file of another kind")
        raise OSError(errno.EINVAL, f"expected a regular file, found a {found}", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, limit: int) -> bytes:
    """Read a whole file of at most `limit` bytes; see `open_regular`.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than the {limit:,} bytes that such a file may have", str(path))
    return content
