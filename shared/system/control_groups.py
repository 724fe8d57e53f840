"""The Linux control groups that limit this process, in a container or a slice of systemd. No dependency."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def control_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and of all groups around it, innermost first.

    Every group sets limits of its own, and the lowest of them counts. Nothing is yielded where there are no control
    groups. Folders may be missing: in a container, the path may be that of the host, and the root is then our group.

    Args:
        controller: "memory" or "cpu". In version 1, each controller has a tree of its own.

    Source: the Linux kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1.
    """
    try:
        lines = MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            base = ROOT
        elif controller in controllers.split(","):
            base = ROOT / controller
        else:
            continue
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            yield folder
            if folder == base:
                break


def read_limit(file: Path) -> int | None:
    """The number in a file of a control group; None where there is no such file, or the limit is "max"."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
