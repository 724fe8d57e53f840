"""What a benchmark ran on."""

import os
import platform
import timeit
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe_machine() -> dict[str, str | int]:
    """Processor, processors that this process may use, memory, system and Python."""
    return {
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "memory in GB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": _interpreter(),
    }


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """The versions of those distributions that are installed."""
    versions = {}
    for name in distributions:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _interpreter() -> str:
    """Its version and a sign of its speed: a build without profile-guided optimization takes up to twice as long."""
    times = 200_000
    seconds = min(timeit.repeat("{'index': x, 'tokens': [x]}", "x = 1", number=times, repeat=5))
    return f"{platform.python_version()}, {seconds / times * 1e9:.0f} ns for a dict and a list"


def _processor() -> str:
    """Its name, with the family and model numbers that Linux gives: virtual machines often hide the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    numbers = [f"{name} {fields[name]}" for name in ("cpu family", "model") if name in fields]
    return ", ".join([fields.get("model name", platform.machine()), *numbers])
