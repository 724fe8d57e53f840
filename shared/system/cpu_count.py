"""How many processors this process may use."""

import functools
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def available_processors() -> int:
    """Those that it is bound to, where the system tells, or that its container's share of time comes to; at least 1."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = _share(_CGROUPS)
    return bound if share is None else max(1, min(bound, share))


@functools.cache  # encoding asks at every call
def _share(cgroup: Path) -> int | None:
    """How many whole processors a control group's limit on time is worth, None where it has no limit."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = " ".join((cgroup / file).read_text(encoding="ascii") for file in files).split()
        except OSError:
            continue
        if len(words) == 2 and all(word.isdecimal() for word in words):  # no limit: "max 100000", or -1
            return int(words[0]) // int(words[1])
    return None
