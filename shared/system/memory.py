"""Memory of this machine and of this process, with the limits of containers taken into account. No torch."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import psutil

from shared.system.control_groups import control_groups, read_limit


class _GroupFiles(NamedTuple):
    """Files of a control group. The page cache counts as free, since it is given back under pressure."""

    limit: str
    usage: str
    page_cache: str  # a key of memory.stat


_VERSIONS = (
    _GroupFiles("memory.max", "memory.current", "inactive_file"),
    _GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def total_memory() -> int:
    """Bytes of memory of this machine, or the lowest limit of this process's control groups where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for limit, _ in _group_limits())])


def free_memory() -> int:
    """Bytes that may still be allocated: what psutil calls available, or what a control group leaves if less."""
    return min([psutil.virtual_memory().available, *(max(0, limit - used) for limit, used in _group_limits())])


def resident_memory() -> int:
    """Bytes that this process holds in memory (RSS); `peak_memory` where the system does not report it."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - a fifth of the time of Path
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_memory()


def peak_memory() -> int:
    """The most bytes that this process ever held in memory."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        # getrusage would include the process that started this one.
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _group_limits() -> list[tuple[int, int]]:
    """The limit of each control group that has one, and the bytes that its processes use."""
    limits = []
    for group in control_groups("memory"):
        for files in _VERSIONS:
            limit = read_limit(group / files.limit)
            if limit is not None:
                limits.append((limit, _usage(group, files)))
    return limits


def _usage(group: Path, files: _GroupFiles) -> int:
    """Bytes in use, without the page cache; 0 where it is not reported."""
    used = read_limit(group / files.usage)
    try:
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    stat = dict(line.split() for line in lines)
    return (used or 0) - int(stat.get(files.page_cache, 0))
