"""Advisory locks on files and folders, which the system releases when the holding process ends."""

from typing import Literal


def lock(file: int, *, holder: Literal["file", "process"]) -> bool:
    """Lock an open file or folder, without waiting.

    Args:
        file: Its descriptor.
        holder: Who holds the lock. "file" (flock): all processes that have this descriptor, including children that
            inherited it, until the last one closes it; works for folders too. "process" (lockf): this process alone,
            until it ends or closes any descriptor of the file, which must be open for writing; locking it again in
            this process succeeds.

    Returns:
        False if another holder has the lock. True without a lock where the system or the file system has none.
    """
    try:
        import fcntl
    except ImportError:
        return True
    take = fcntl.flock if holder == "file" else fcntl.lockf
    try:
        take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # which of the two depends on the system
        return False
    except OSError:
        return True
    return True
