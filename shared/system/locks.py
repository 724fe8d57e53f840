"""Advisory locks on files and folders, which the system releases when the holding process ends."""

import os
import struct
import sys
from pathlib import Path
from typing import Literal

_HELD: set[tuple[int, int]] = set()
"""Device and inode of the files that this process has locked as a process."""


def lock(file: int, *, holder: Literal["file", "process"], wait: bool = False) -> bool:
    """Lock an open file or folder.

    Args:
        file: Its descriptor.
        holder: Who holds the lock. "file" (flock): all processes that have this descriptor, including children that
            inherited it, until the last one closes it; works for folders too. "process" (lockf): this process alone,
            until it ends or closes any descriptor of the file, which must be open for writing; locking it again in
            this process succeeds.
        wait: Wait until another holder releases it.

    Returns:
        False if another holder has the lock. True without a lock where the system or the file system has none.
    """
    try:
        import fcntl
    except ImportError:
        return True
    take = fcntl.flock if holder == "file" else fcntl.lockf
    try:
        take(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (BlockingIOError, PermissionError):  # which of the two depends on the system
        return False
    except OSError:
        return True
    if holder == "process":
        status = os.fstat(file)
        _HELD.add((status.st_dev, status.st_ino))
    return True


def is_locked_by_process(path: Path) -> bool | None:
    """Whether another process holds a lock of the kind "process" on a file. Takes no lock itself.

    Returns:
        False also where there is no such file; None where the system or the file system cannot say.
    """
    holder = locking_process(path)
    return None if holder is None else holder != 0


def locking_process(path: Path) -> int | None:
    """The id of the other process that holds a lock of the kind "process" on a file. Takes no lock itself.

    Returns:
        0 where there is none, and where there is no such file; -1 for a process whose id this one cannot see, as of
        another container; None where the system or the file system cannot say.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        status = path.stat()
        if (status.st_dev, status.st_ino) in _HELD:
            return 0  # and closing the file below would end our own lock
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return 0
    except OSError:
        return None
    # struct flock: type, whence, start, length, process; BSD and macOS have the first two at the end.
    is_linux = sys.platform == "linux"
    layout, kind, process = ("hhqqi", 0, 4) if is_linux else ("qqihh", 3, 2)
    whole = [fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0] if is_linux else [0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET]
    try:
        found = struct.unpack(layout, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(layout, *whole)))
    except OSError:
        return None
    finally:
        os.close(file)
    return 0 if found[kind] == fcntl.F_UNLCK else found[process] or -1
