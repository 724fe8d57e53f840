"""Keeping other processes out of a folder, by locks that end with the process that holds them, however it ends."""

from typing import Literal


def lock(file: int, *, holder: Literal["file", "process"]) -> bool:
    """Lock an open file or folder, without waiting.

    Args:
        file: Its descriptor.
        holder: Who has the lock. "file": whoever holds this descriptor, child processes that inherited it too, until
            the last has closed it; folders can be locked so. "process": this process alone, until it ends or closes
            any descriptor of the file, which must be open for writing; locking it again in this process succeeds.

    Returns:
        False where somebody else has it. Nobody is kept out, and it is True, where the system or the file system
        knows no such locks.
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
