"""The number of processors that this process may use."""

import functools
import os
from pathlib import Path

from shared.system.control_groups import control_groups


def available_processors() -> int:
    """The processors in this process's affinity mask, or its control groups' CPU quota where that is less; at least 1.

    A quota of 2.5 processors counts as 2.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return count if quota is None else max(1, min(count, quota))


@functools.cache  # encoding asks at every call
def _quota() -> int | None:
    """Whole processors that the lowest CPU quota amounts to; None where there is no quota."""
    return min((quota for group in control_groups("cpu") if (quota := _quota_of(group)) is not None), default=None)


def _quota_of(group: Path) -> int | None:
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            fields = " ".join((group / file).read_text(encoding="ascii") for file in files).split()
        except OSError:
            continue
        if len(fields) == 2 and all(field.isdecimal() for field in fields):  # no quota: "max 100000", or -1
            return int(fields[0]) // int(fields[1])
    return None
