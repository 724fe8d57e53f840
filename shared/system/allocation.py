"""How a process gets its memory and gives it back.

What these functions set is the whole process's, and lasts, so that only commands and services call them. The parameters
of glibc (mallopt(3)) are on Linux only.
"""

import ctypes
import gc
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed for the next step of a training, rather than give it back to the system.

    A step on a CPU allocates and frees the same hundreds of megabytes as the step before. By default blocks above 32 MB
    are mapped afresh each time, and each of their pages is cleared by the system when it is first touched: 7 to 11 % of
    a step here. Peak memory stays within 3 %.

    Returns:
        Whether it was done: not without glibc.
    """
    return _set({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1})


def give_back_freed_memory() -> bool:
    """Let glibc keep little of what is freed, for a service whose requests and answers are of all sizes.

    By default every thread has a heap, and once a large block was freed, blocks of megabytes come from the heaps as
    well, where what stays between them keeps their memory. Here all threads have one heap, blocks of 4 MiB and more are
    mapped and go back at once, and the heap's end goes back above 32 MiB: under mixed requests of up to 2 MB the
    tokenizer service takes 165 MiB where it took 255 and grew. Threads seldom allocate at once under the interpreter
    lock: it is as fast, with bodies of 200 bytes to 8 MB.

    Returns:
        Whether it was done: not without glibc.
    """
    return _set({_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: 4 << 20, _M_TRIM_THRESHOLD: 32 << 20})


def freeze_objects() -> None:
    """Let the garbage collector look at objects of requests only: what is there now stays."""
    gc.freeze()
    # This finds nothing, and counts nothing. A full collection waits until there is a quarter more than the last one
    # counted: as much garbage would be left in memory.
    gc.collect()


def _set(parameters: dict[int, int]) -> bool:
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl has no such thing
        return False
    return all(mallopt(parameter, value) for parameter, value in parameters.items())
