"""How much memory there is, and how much this process takes."""

import os
import sys
from pathlib import Path

from shared.bpe import kernels
from shared.bpe.errors import TokenizerError
from shared.kernels import object_file

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

# What training takes beside words and pairs, at least: buffers, and what Python makes of the result.
_RESERVE_BYTES = 48 << 20
_SHARE_OF_TABLES, _SHARE_OF_PARTS = 0.6, 0.2
# What a byte of a word takes when merges are learnt, at least.
BYTES_OF_MERGING = 12


class MemoryRoom:
    """What a training may take of a limit, given what the program itself takes of it already.

    Args:
        limit: Bytes that the process may hold; half of what there is if None.

    Attributes:
        limit: The same.
        tables: For the word tables of all threads, while they grow too.
        parts: For what all threads read of the text.
        word: For a single word, so that merging it may find room.

    Raises:
        TokenizerError: If the limit is too low for anything.
    """

    def __init__(self, limit: int | None):
        object_file.of(kernels.__name__).load()  # so that what the kernels take is known
        self.limit = limit or total_memory() // 2
        taken = resident_memory()
        left = self.limit - taken - _RESERVE_BYTES
        if left < _RESERVE_BYTES:
            raise TokenizerError(
                f"the memory limit of {self.limit:,} bytes is too low: the program itself takes {taken:,}, and "
                f"training at least {2 * _RESERVE_BYTES:,}"
            )
        self.tables = int(left * _SHARE_OF_TABLES)
        self.parts = int(left * _SHARE_OF_PARTS)
        self.word = left // BYTES_OF_MERGING

    def for_merging(self) -> int:
        """What is left of the limit now, but for what Python makes of the result."""
        return max(0, self.limit - resident_memory() - _RESERVE_BYTES // 2)


def total_memory() -> int:
    """Bytes of memory of this machine, or of the container that this process runs in."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)


def resident_memory() -> int:
    """Bytes that this process holds in memory; the most that it ever held where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_memory()


def peak_memory() -> int:
    """The most bytes that this process ever held in memory."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        # What getrusage says includes the process that this one was started by.
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
