"""Where the time and the memory of a job went: measured by stages, written as text and as JSON."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from shared.system.files import to_json, write_text
from shared.system.memory import peak_memory, resident_memory

VERSION = 1
_OTHER = "other"
_NOTES = (
    "Seconds are those of all threads together, without the stages inside; they may exceed the time of the job.",
    f"{_OTHER}: the first thread outside all stages. Threads that a stage starts are not in its processor time.",
)


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
        share: Of the seconds of all stages.
    """

    name: str
    calls: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    amount: int = 0
    peak_memory: int = 0
    share: float = 0.0

    @property
    def per_second(self) -> float | None:
        """The amount in each second of one thread."""
        return self.amount / self.seconds if self.amount and self.seconds else None


@dataclass
class _Clock:
    """The stages of one thread: time goes to the innermost."""

    is_main: bool
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


class Profile:
    """Measures a job from now on. `stage` may be used on any thread, and nested.

    Args:
        job: The command.
        unit: Of the amounts that stages work on: bytes or tokens.
    """

    def __init__(self, job: str, unit: str):
        self.job = job
        self.unit = unit
        self._begin = time.perf_counter(), time.process_time()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._clocks = [self._clock(is_main=True)]
        self._peak = peak_memory()

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
            "peak_memory": peak_memory(),
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
        write_text(folder / "profile.json", to_json(content))
        write_text(folder / "profile.txt", text)
        return text

    def _clock(self, *, is_main: bool = False) -> _Clock:
        clock: _Clock | None = getattr(self._local, "clock", None)
        if clock is None:
            clock = self._local.clock = _Clock(is_main)
            if not is_main:
                with self._lock:
                    self._clocks.append(clock)
        return clock

    def _memory(self) -> int:
        """Bytes held now, or at the peak if that has risen since the last call."""
        with self._lock:
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
                for key in ("calls", "seconds", "processor_seconds", "amount"):
                    setattr(whole, key, getattr(whole, key) + getattr(use, key))
                whole.peak_memory = max(whole.peak_memory, use.peak_memory)
        stages = sorted(total.values(), key=lambda use: -use.seconds)
        in_stages = sum(use.seconds for clock in self._clocks if clock.is_main for use in clock.stages.values())
        stages.append(StageUse(_OTHER, seconds=max(0.0, wall - in_stages)))
        for use in stages:
            use.share = use.seconds / sum(each.seconds for each in stages)
        return stages


def profile_text(content: dict[str, Any]) -> str:
    """The content of `profile.json` for people."""
    unit = content["unit"]
    table = Table(box=SIMPLE_HEAD)
    table.add_column("stage")
    for heading in (
        "share",
        "seconds",
        "on a\nprocessor",
        "calls",
        f"million\n{unit}",
        "million\na second",
        "memory\nMB",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for use in content["stages"]:
        table.add_row(
            use["name"],
            f"{use['share']:.1%}",
            f"{use['seconds']:.3f}",
            f"{use['processor_seconds']:.3f}" if use["calls"] else "–",
            f"{use['calls']:,}" if use["calls"] else "–",
            f"{use['amount'] / 1e6:,.1f}" if use["amount"] else "–",
            f"{use['per_second'] / 1e6:,.1f}" if use["per_second"] else "–",
            f"{use['peak_memory'] / 1e6:,.0f}" if use["peak_memory"] else "–",
        )
    console = Console(file=StringIO(), width=120, color_system=None)
    console.print(table)
    assert isinstance(console.file, StringIO)
    lines = [_summary(content), *console.file.getvalue().splitlines(), *_NOTES]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _summary(content: dict[str, Any]) -> str:
    threads = f"{content['threads']} thread{'s' if content['threads'] > 1 else ''}"
    return (
        f"{content['job']}: {content['amount']:,} {content['unit']} in {content['seconds']:.2f} s, "
        f"{content['per_second'] / 1e6:,.1f} million a second; {content['processor_seconds']:.2f} s of processor time, "
        f"{threads}; peak memory {content['peak_memory'] / 1e6:,.0f} MB"
    )
