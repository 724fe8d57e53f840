"""Where a run stands: whether a process is at work on it, and how it ended otherwise."""

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
        kind: Killed: no process is at work, and none recorded an end. Unknown: a run that was made elsewhere, or by a
            version that recorded no end.
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
    if is_locked_by_process(run.lock_file):
        return Standing("running")
    starts = record.get("starts", [])
    if not starts or "end" not in starts[-1]:
        return UNKNOWN
    end = starts[-1]["end"]
    if end is None:
        return Standing("killed")
    return Standing(end["how"] if end["how"] in get_args(End) else "unknown", end["reason"] or "")
