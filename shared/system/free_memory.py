"""How much memory this machine, or the container that the process runs in, still has. No torch."""

from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Bytes that may still be taken: what psutil calls available, or what a control group leaves where that is less."""
    return min([psutil.virtual_memory().available, *_cgroup_rooms()])


def _cgroup_rooms(root: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> list[int]:
    """What each limit on this process's memory leaves; the page cache counts as free, since it gives way."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    rooms: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Each group above has a limit too. In a container the path may be the host's: then the root is our group.
        here = base / path.lstrip("/")
        for folder in (here, *here.parents):
            if folder == base.parent:
                break
            rooms += _room(folder, *names)
    return rooms


def _room(folder: Path, limit: str, usage: str, cache: str) -> list[int]:
    """What one group's limit leaves; nothing where it has none."""
    try:
        most = (folder / limit).read_text(encoding="ascii").strip()
        if not most.isdecimal():  # "max"
            return []
        used = int((folder / usage).read_text(encoding="ascii"))
        fields = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):
        return []
    return [max(0, int(most) - used + int(fields.get(cache, 0)))]
