"""Replacing a folder atomically: a crash at any point leaves the old one or the new one."""

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary sibling of `path` to fill; on success it becomes `path`, synced to the disk.

    If the body raises, the sibling is removed and `path` is unchanged. What a killed process left is removed by the
    next call. Only one process at a time may write to a path.

    Args:
        path: The folder to create, or to replace.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    remove(temporary)
    temporary.mkdir()
    try:
        yield temporary
        _sync_tree(temporary)
        if path.exists():
            _exchange(temporary, path)
        else:
            temporary.rename(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders: atomically by renameat2 on Linux, else by renames."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.ENOSYS, errno.EINVAL, errno.EXDEV):
            raise OSError(code, os.strerror(code), str(old))
    aside = old.with_name(f".{old.name}.previous")
    old.rename(aside)
    new.rename(old)
    aside.rename(new)


def _sync_tree(folder: Path) -> None:
    for directory, _, names in os.walk(folder):
        for name in names:
            _sync(Path(directory, name))
        _sync(Path(directory))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
