"""`run.json`: what a run was started with, so that its results can be traced and reproduced."""

import functools
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from shared.system.files import to_json, write_text
from shared.system.regular_file import LARGEST_RECORD, read_regular
from trainer.runs.json_types import has_type

End = Literal["finished", "stopped", "diverged", "failed"]

_START = {
    "time": str,
    "step": int,
    "command": str,
    "git": (None, {"revision": str, "dirty": bool}),
    "versions": dict,
    "machine": {"name": str, "cpu": str, "cpus": (None, int)},
    "device": str,
    "processes": int,
    "end": (None, {"time": str, "step": int, "how": str, "reason": (None, str)}),
}
_PARTS = {
    "parameters": int,
    "trained_parameters": int,
    "tokens": int,
    "data": {"fingerprint": (None, str), "validation": (None, {"hash": (None, str), "sha256": (None, str)})},
}
_PACKAGES = ("ownlm", "torch", "numpy", "safetensors")
_CODE = Path(__file__).resolve().parent.parent


def record_start(
    path: Path,
    *,
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    parameters: int,
    trained_parameters: int,
    tokens: int,
    step: int,
    device: str,
    processes: int = 1,
    resumed: bool = False,
) -> None:
    """Record the start of a run, or append it where the run is resumed.

    Args:
        path: The run's `run.json`.
        settings: All settings, as a flat table.
        data: What identifies the token files.
        parameters: Weights of the model.
        trained_parameters: Those that are trained, or the weights of its adapters.
        tokens: Of the whole run, those seen again counted again.
        step: Steps done before.
        device: Where it computes.
        processes: How many processes train together.
        resumed: Whether the run was started earlier; otherwise the file belongs to another run, and is replaced.
    """
    start = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "command": shlex.join(sys.orig_argv),
        "git": git_state(),
        "versions": _versions(),
        "machine": _machine(),
        "device": device,
        "processes": processes,
        "end": None,
    }
    earlier = read_record(path)["starts"] if resumed else []
    numbers = {"parameters": parameters, "trained_parameters": trained_parameters, "tokens": tokens}
    of_run = {"config": dict(settings), "data": dict(data), **numbers}
    write_text(path, to_json({**of_run, "starts": [*earlier, start]}))


def record_end(path: Path, *, step: int, how: End, reason: str | None = None) -> None:
    """Record how the last start of a run ended. Where nothing is recorded and no process is at work, it was killed.

    Args:
        path: The run's `run.json`.
        step: Steps done.
        how: In a word.
        reason: Why, where it did not finish.
    """
    content = read_record(path)
    if content["starts"]:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        content["starts"][-1]["end"] = {"time": time, "step": step, "how": how, "reason": reason}
        write_text(path, to_json(content))


def read_record(path: Path) -> dict[str, Any]:
    """The content of the file, with those of its starts that have a time; empty where it is missing or damaged.

    No result depends on it.
    """
    content = _read(path)
    starts = content.get("starts")
    return content | {"starts": [start for start in starts if _has_time(start)] if isinstance(starts, list) else []}


def valid_record(path: Path, notes: list[str]) -> dict[str, Any]:
    """The parts of the file that have the types which `record_start` writes.

    Args:
        path: The run's `run.json`.
        notes: Gets a line for each part that is omitted.
    """
    content = _read(path)
    if not content and path.exists():
        notes.append(f"{path.name}: is damaged")
    record = {
        name: content[name]
        for name, expected in _PARTS.items()
        if name in content and has_type(content[name], expected)
    }
    record["starts"] = [start for start in read_record(path)["starts"] if has_type(start, _START)]
    odd = [name for name in ("starts", *_PARTS) if name in content and content[name] != record.get(name)]
    notes += [f"{path.name}: {name} has an unexpected type" for name in odd]
    return record


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(path, LARGEST_RECORD))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _has_time(start: object) -> bool:
    try:
        return isinstance(start, dict) and bool(datetime.fromisoformat(start.get("time", "")))
    except (TypeError, ValueError):
        return False


@functools.cache
def git_state() -> dict[str, Any] | None:
    """Revision of the running code, and whether it has uncommitted changes; None outside a git checkout."""
    # An installed package may be in another project's checkout, which does not track it.
    if _git("ls-files", "--error-unmatch", __file__) is None:
        return None
    revision, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    return None if revision is None else {"revision": revision, "dirty": bool(changes)}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            ["git", "-C", str(_CODE), *arguments],  # noqa: S607 - the user's git
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _machine() -> dict[str, Any]:
    return {"name": platform.node(), "system": platform.platform(), "cpu": _cpu_name(), "cpus": os.cpu_count()}


def _cpu_name() -> str:
    """The name of the processor, which Linux has in a file only."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
