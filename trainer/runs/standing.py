"""Where a run stands: whether a process is at work on it, and how it ended otherwise."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from shared.system.locks import is_locked_by_process
from trainer.runs.folder import RunFolder
from trainer.runs.record import End


@dataclass(frozen=True)
class Standing:
    """Where a run stands.

    Attributes:
        kind: Killed: no process is at work, and none recorded an end. Unknown: a copy from another machine, where it
            may be at work, or a run of a version that recorded no end.
        reason: Why it did not finish, if that was recorded.
    """

    kind: Literal["running", "killed", "unknown"] | End
    reason: str = ""


UNKNOWN = Standing("unknown")


def standing(run: RunFolder, record: Mapping[str, Any]) -> Standing:
    """Where the run stands now.

    Args:
        run: Its folder.
        record: What `valid_record` found in `run.json`.
    """
    starts = record.get("starts", [])
    last = starts[-1] if starts else {}
    end = last.get("end")
    if end is not None:  # also while the process that recorded it still has the lock
        return Standing(end["how"], end["reason"] or "") if end["how"] in get_args(End) else UNKNOWN
    is_locked = is_locked_by_process(run.lock_file)
    if is_locked:
        return Standing("running")
    is_ours = last.get("machine", {}).get("name") == platform.node()
    return Standing("killed") if is_locked is False and is_ours and "end" in last else UNKNOWN
