"""Reading untrusted files: only regular ones, and only up to a size."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

LARGEST_RECORD = 256 << 20
"""Largest JSON record that is read, in bytes: a manifest may list a million text files."""

_KINDS = {stat.S_IFDIR: "directory", stat.S_IFIFO: "FIFO", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. A FIFO would block, and a device may be endless: both are refused.

    Raises:
        OSError: It cannot be opened, or is not a regular file; `strerror` says which.
    """
    try:
        # With O_NONBLOCK, opening a FIFO does not wait; for regular files it has no effect.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a null character, or half of a surrogate pair
        raise OSError(errno.EINVAL, f"not a valid file name ({error})", str(path)) from error
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        found = _KINDS.get(kind, "special file")
        raise OSError(errno.EINVAL, f"expected a regular file, found a {found}", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, limit: int) -> bytes:
    """Read a whole file of at most `limit` bytes; see `open_regular`.

    Raises:
        OSError: It cannot be read, is not a regular file, or is larger.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than the limit of {limit:,} bytes", str(path))
    return content
