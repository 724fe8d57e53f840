"""torch's profiler over a few steps: a trace, and a table of operators."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType

_MOST_OPERATORS = 30


class StepTrace:
    """Records what torch does from `record` to `stop`.

    `start` comes before: the profiler loads, which takes seconds, and warms up.

    Args:
        path: The trace, in Chrome's format and compressed, for https://ui.perfetto.dev or chrome://tracing.
        device: Where the steps run.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        from torch import profiler

        activities = [profiler.ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(profiler.ProfilerActivity.CUDA)
        schedule = profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
        self.path = path
        self._profiler = profiler.profile(activities=activities, schedule=schedule, profile_memory=True)
        self.stage = profiler.record_function
        self.is_recording = False

    def start(self) -> None:
        """Load the profiler."""
        self._profiler.start()

    def record(self) -> None:
        """Record from here on."""
        self._profiler.step()
        self.is_recording = True

    def discard(self) -> None:
        """End without a result."""
        self._profiler.stop()

    def stop(self) -> list[dict[str, Any]]:
        """End recording, and write the trace.

        Returns:
            The operators that took the most time themselves, with the others summed in the last row.

        Raises:
            OSError: The trace cannot be written.
        """
        self.is_recording = False
        self._profiler.stop()
        partial = self.path.with_name(f".partial-{self.path.name}")
        try:
            self._profiler.export_chrome_trace(str(partial))
            partial.replace(self.path)
        finally:
            partial.unlink(missing_ok=True)
        return operator_rows(self._profiler.key_averages())


def operator_rows(averages: Sequence[Any]) -> list[dict[str, Any]]:
    """The operators of a trace, the longest first; of those after the thirtieth, the sum.

    Args:
        averages: What torch's profiler has counted for each operator, from `key_averages`.
    """
    rows = [
        {
            "name": each.key,
            "calls": each.count,
            "seconds": each.self_cpu_time_total / 1e6,
            "device_seconds": each.self_device_time_total / 1e6,
            "total_seconds": max(each.cpu_time_total, each.device_time_total) / 1e6,
            "memory": each.self_device_memory_usage or each.self_cpu_memory_usage,
        }
        for each in averages
        if not each.is_user_annotation and each.device_type == DeviceType.CPU  # kernels are in the operators' times
    ]
    key = "device_seconds" if any(row["device_seconds"] for row in rows) else "seconds"
    rows.sort(key=lambda row: -row[key])
    rest = rows[_MOST_OPERATORS:]
    rows = rows[:_MOST_OPERATORS]
    if rest:
        sums = {name: sum(row[name] for row in rest) for name in ("calls", "seconds", "device_seconds", "memory")}
        rows.append({"name": f"{len(rest)} others", **sums, "total_seconds": 0.0})
    whole = sum(row[key] for row in rows)
    return [{**row, "share": row[key] / whole if whole else 0.0} for row in rows]
