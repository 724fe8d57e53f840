"""`metrics.jsonl` in columns, kept up to date while a run writes it."""

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from shared.system.regular_file import open_regular
from trainer.runs.json_types import LARGEST

Floats = npt.NDArray[np.float64]

_LAST_STEP = 1 << 53  # beyond, a float64 cannot distinguish neighbors
_CHUNK = 1 << 20  # read at once; no record is as long
_BETWEEN_MARKS = 64 << 10
_NUMBERS = (float, int)  # a million records have several million values: this is quicker than has_type
_ANCHOR = 256  # has at least the loss or the time of a record, which no other run shares


@dataclass(frozen=True)
class Curve:
    """One value over the steps; NaN where it was not a finite number.

    Attributes:
        steps: [points], increasing.
        values: [points].
    """

    steps: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.steps)


@dataclass
class Column:
    """One value of the records, as it grows.

    Attributes:
        steps: Of each value.
        values: NaN where it was not a finite number.
        is_increasing: Whether the steps are.
        num_unchanged: How many of the first values are as they were when a reader last set this.
    """

    steps: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    is_increasing: bool = True
    num_unchanged: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    def append(self, step: int, value: float) -> None:
        """Add a value; of several in a row for one step, the last one counts."""
        if self.steps and step <= self.steps[-1]:
            if step == self.steps[-1]:
                self.values[-1] = value
                self.num_unchanged = min(self.num_unchanged, len(self) - 1)
                return
            self.is_increasing = False
        self.steps.append(step)
        self.values.append(value)

    def cut(self, length: int) -> None:
        """Drop all values except the first `length`."""
        del self.steps[length:], self.values[length:]
        self.num_unchanged = min(self.num_unchanged, length)

    def curve(self, start: int = 0) -> Curve:
        """The values from `start` on, sorted by step; of several of one step, the last one counts."""
        steps, values = np.array(self.steps[start:]), np.array(self.values[start:])
        if self.is_increasing:
            return Curve(steps, values)
        _, from_the_end = np.unique(steps[::-1], return_index=True)
        kept = len(steps) - 1 - from_the_end
        return Curve(steps[kept], values[kept])


@dataclass(frozen=True)
class _Mark:
    """A place in the file, between two lines.

    Attributes:
        offset: In bytes.
        anchor: The bytes before it, up to 256: as long as they are there, so is what was read before them.
        lengths: Of each column there.
        samples: How many there were.
        events: How many there were.
    """

    offset: int = 0
    anchor: bytes = b""
    lengths: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    events: int = 0


class MetricsTable:
    """The records of a file that grows, is cut off, is replaced, or is not there yet.

    A resumed run and one that returns to a checkpoint write the file again without the records of later steps. What is
    still there is not read again, but for up to 1 MB before the place where the file was cut.

    Attributes:
        path: Of the file.
        columns: Each numeric key.
        samples: Step and text.
        events: Step, and what was done on divergence.
        num_invalid: Values that are no numbers or implausibly large, and records with an impossible step.
    """

    def __init__(self, path: Path) -> None:
        self.columns: dict[str, Column] = {}
        self.samples: list[tuple[int, str]] = []
        self.events: list[tuple[int, str]] = []
        self.num_invalid = 0
        self.path = path
        self._seen: tuple[int, ...] | None = None
        self._marks = [_Mark()]
        self._end = _Mark()

    def update(self) -> bool:
        """Read what is new; whether anything changed.

        Raises:
            OSError: the file is there and cannot be read.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            changed = self._end.offset > 0
            self._go_back(_Mark())
            self._seen = None
            return changed
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if seen == self._seen:
            return False
        with open_regular(self.path) as file:
            self._find_place(file, status.st_size)
            while self._read_chunk(file):
                pass
        self._seen = seen
        return True

    def _find_place(self, file: BinaryIO, size: int) -> None:
        """Go back to the last place before which the file is as it was read."""
        for mark in (self._end, *reversed(self._marks)):
            if mark.offset <= size:
                file.seek(mark.offset - len(mark.anchor))
                if file.read(len(mark.anchor)) == mark.anchor:
                    self._go_back(mark)
                    return

    def _go_back(self, mark: _Mark) -> None:
        if mark is self._end:
            return
        for name, column in self.columns.items():
            column.cut(mark.lengths.get(name, 0))
        if not mark.offset:
            self.columns.clear()  # another run may have other keys, in an order of its own
            self.num_invalid = 0
        del self.samples[mark.samples :], self.events[mark.events :]
        while self._marks[-1].offset > mark.offset:
            self._marks.pop()
        self._end = mark

    def _read_chunk(self, file: BinaryIO) -> bool:
        """Read the next whole lines; false if there are none."""
        file.seek(self._end.offset)
        data = file.read(_CHUNK)
        length = data.rfind(b"\n") + 1
        if not length and len(data) == _CHUNK:
            length = _CHUNK  # a part of something that is no record
        for line in data[:length].split(b"\n"):
            self._add(line)
        if length:
            self._end = _Mark(
                self._end.offset + length,
                (self._end.anchor + data[:length])[-_ANCHOR:],
                {name: len(column) for name, column in self.columns.items()},
                len(self.samples),
                len(self.events),
            )
            if self._end.offset >= self._marks[-1].offset + _BETWEEN_MARKS:
                self._marks.append(self._end)
        return length > 0

    def _add(self, line: bytes) -> None:
        try:
            record = orjson.loads(line)
            step = record.pop("step")
        except (ValueError, AttributeError, TypeError, KeyError):
            return
        if not isinstance(step, int):
            return
        if isinstance(step, bool) or not 0 <= step <= _LAST_STEP:
            self.num_invalid += 1
            return
        for key, value in record.items():
            self._add_value(step, key, value)

    def _add_value(self, step: int, key: str, value: Any) -> None:
        if key == "sample":
            self.samples.append((step, str(value)))
        elif key == "event":
            self.events.append((step, str(value)))
        elif value is None or (type(value) in _NUMBERS and -LARGEST <= value <= LARGEST):
            column = self.columns.get(key)
            if column is None:
                column = self.columns[key] = Column()
            column.append(step, np.nan if value is None else value)
        else:
            self.num_invalid += 1
