"""Where the time and the memory of a job went: measured by stages, written as text and as JSON."""

import resource
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shared.system.files import to_json, write_text
from shared.system.memory import peak_memory, resident_memory
from trainer.runs.profile_text import OTHER, profile_text

VERSION = 1
PROFILE_FILE = "profile.json"
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass
class StageUse:
    """What a stage took, over all threads, without the stages inside it.

    Attributes:
        name: What it does.
        calls: How often it was entered.
        seconds: Wall-clock time of the threads that were in it.
        processor_seconds: Of these, time on a processor; the rest was waiting, for the disk for example.
        amount: How much it worked on, in the job's unit; 0 if that was not said.
        peak_memory: Bytes that the process held when a call ended, or at its peak if the peak rose during one.
        device_seconds: Time of the GPU from its reaching the begin of the stage to its reaching the end.
        share: Of the seconds of all stages; where a GPU computes, of its seconds.
    """

    name: str
    calls: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    amount: int = 0
    peak_memory: int = 0
    device_seconds: float = 0.0
    share: float = 0.0

    @property
    def per_second(self) -> float | None:
        """The amount in each second of one thread."""
        return self.amount / self.seconds if self.amount and self.seconds else None


class DeviceClock(Protocol):
    """`trainer.compute.device_clock.DeviceClock`, which needs torch."""

    def mark(self, stage: StageUse | None) -> None:
        """Give the GPU's time since the last mark to a stage."""

    def finish(self) -> None:
        """Wait until all marks have their times."""


@dataclass
class _Clock:
    """The stages of one thread: time goes to the innermost."""

    is_main: bool
    device: DeviceClock | None = None
    outside: StageUse = field(default_factory=lambda: StageUse(OTHER))
    stages: dict[str, StageUse] = field(default_factory=dict)
    open: list[StageUse] = field(default_factory=list)
    wall: float = 0.0
    processor: float = 0.0

    def advance(self) -> None:
        """Give the time since the last call to the innermost stage."""
        wall, processor = time.perf_counter(), time.thread_time()
        if self.open:
            self.open[-1].seconds += wall - self.wall
            self.open[-1].processor_seconds += processor - self.processor
        self.wall, self.processor = wall, processor
        if self.device is not None:
            self.device.mark(self.open[-1] if self.open else self.outside)


class Profile:
    """Measures a job from now on. `stage` may be used on any thread, and nested.

    Args:
        job: The command.
        unit: Of the amounts that stages work on: bytes or tokens.
        device: Measures the stages of this thread on a GPU.
    """

    def __init__(self, job: str, unit: str, device: DeviceClock | None = None):
        self.job = job
        self.unit = unit
        self._device = device
        self._begin = time.perf_counter(), time.process_time()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._clocks = [self._clock(is_main=True)]
        self._peak = peak_memory()
        if device is not None:
            device.mark(None)

    @contextmanager
    def stage(self, name: str, amount: int = 0) -> Iterator[None]:
        """A `shared.system.stages.Stage`."""
        clock = self._clock()
        clock.advance()
        use = clock.stages.setdefault(name, StageUse(name))
        clock.open.append(use)
        try:
            yield
        finally:
            clock.advance()
            clock.open.pop()
            use.calls += 1
            use.amount += amount
            use.peak_memory = max(use.peak_memory, self._memory())

    def content(self, amount: int) -> dict[str, Any]:
        """What was measured until now, as `profile.json` has it.

        Args:
            amount: What the whole job worked on, in its unit.
        """
        if self._device is not None:
            self._device.finish()
        wall, processor = time.perf_counter() - self._begin[0], time.process_time() - self._begin[1]
        stages = self._stages(wall)
        return {
            "version": VERSION,
            "job": self.job,
            "unit": self.unit,
            "amount": amount,
            "seconds": wall,
            "per_second": amount / wall,
            "processor_seconds": processor,
            "threads": len(self._clocks),
            # The system counts both roughly: what is held now may be some pages above the peak.
            "peak_memory": max(peak_memory(), *(use.peak_memory for use in stages)),
            "stages": [{**asdict(use), "per_second": use.per_second} for use in stages],
        }

    def write(self, folder: Path, amount: int) -> str:
        """Write profile.txt and profile.json; returns the text.

        Args:
            folder: Where.
            amount: As in `content`.

        Raises:
            OSError: A file cannot be written.
        """
        content = self.content(amount)
        text = profile_text(content)
        write_profile(folder, content, text)
        return text

    def _clock(self, *, is_main: bool = False) -> _Clock:
        clock: _Clock | None = getattr(self._local, "clock", None)
        if clock is None:
            clock = self._local.clock = _Clock(is_main, self._device if is_main else None)
            if not is_main:
                with self._lock:
                    self._clocks.append(clock)
        return clock

    def _memory(self) -> int:
        """Bytes held now, or at the peak if that has risen since the last call."""
        with self._lock:
            # The system's quick figure never is below the peak, but may be that of the process which started this one.
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT > self._peak:
                peak = peak_memory()
                if peak > self._peak:
                    self._peak = peak
                    return peak
        return resident_memory()

    def _stages(self, wall: float) -> list[StageUse]:
        """Over all threads, the longest first; then what the first thread did in none."""
        total: dict[str, StageUse] = {}
        for clock in self._clocks:
            for use in [*clock.stages.values()]:
                whole = total.setdefault(use.name, StageUse(use.name))
                for key in ("calls", "seconds", "processor_seconds", "device_seconds", "amount"):
                    setattr(whole, key, getattr(whole, key) + getattr(use, key))
                whole.peak_memory = max(whole.peak_memory, use.peak_memory)
        stages = [*total.values()]
        in_stages = sum(use.seconds for clock in self._clocks if clock.is_main for use in clock.stages.values())
        on_device = self._clocks[0].outside.device_seconds
        stages.append(StageUse(OTHER, seconds=max(0.0, wall - in_stages), device_seconds=on_device))
        key = "seconds" if self._device is None else "device_seconds"
        whole_time = sum(getattr(use, key) for use in stages)
        for use in stages:
            use.share = getattr(use, key) / whole_time if whole_time else 0.0
        return sorted(stages[:-1], key=lambda use: -use.share) + stages[-1:]


def write_profile(folder: Path, content: Mapping[str, Any], text: str) -> None:
    """Write profile.json and profile.txt.

    Raises:
        OSError: A file cannot be written.
    """
    write_text(folder / PROFILE_FILE, to_json(content))
    write_text(folder / "profile.txt", text)
