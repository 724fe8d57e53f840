"""How a training process gets its memory on Linux."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next step, rather than return it to the system.

    A step on a CPU allocates and frees the same hundreds of megabytes as the step before. By default blocks above 32 MB
    are mapped afresh each time, and each of their pages is cleared by the system when it is first touched: 7 to 11 % of
    a step here. Peak memory stays within 3 %. The setting applies to the whole process, so only commands call this.

    Returns:
        Whether it took effect: only glibc has these two parameters (mallopt(3)).
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl has no mallopt
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))
