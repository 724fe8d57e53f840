"""`metrics.jsonl`: one JSON object a line, for plots and comparisons."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from shared.system.files import write_text
from trainer.errors import TrainerError


class MetricsFile:
    """Appends records that carry their `step`.

    A record is one line, written at once, so that a killed run leaves whole lines; what is not a finite number becomes
    null, since JSON has no NaN.

    Attributes:
        listener: Gets each record after it was written.
    """

    listener: Callable[[Mapping[str, Any]], None] | None = None

    def __init__(self, path: Path, *, first_step: int) -> None:
        """Open the file for a run that goes on after `first_step`; records of later steps are dropped.

        Raises:
            TrainerError: it cannot be read or written.
        """
        self._path = path
        self.rewind(first_step)

    def rewind(self, step: int) -> None:
        """Drop the records of later steps, and a last line cut short.

        Raises:
            TrainerError: the file cannot be written; it is then as it was.
        """
        try:
            lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
            kept = [line for line in lines if _step(line) <= step]
            if kept != lines or not self._path.exists():
                write_text(self._path, b"".join(kept).decode())
        except OSError as error:
            raise self._failed(error) from error

    def write(self, **record: Any) -> None:
        """Append one record.

        Raises:
            TrainerError: it cannot be written, such as on a full disk.
        """
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(finite, allow_nan=False) + "\n")
        except OSError as error:
            raise self._failed(error) from error
        if self.listener is not None:
            self.listener(finite)

    def sync(self) -> None:
        """See to it that what was written outlives a power cut, as a checkpoint does.

        Raises:
            TrainerError: it does not reach the disk.
        """
        try:
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> TrainerError:
        return TrainerError(f"{self._path} cannot be written: {error.strerror}")


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file, also of a run that is at work or was killed: what is no record is left out.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        for line in file:
            try:
                record = orjson.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                yield record


def _step(line: bytes) -> float:
    """The step of a record; infinite for what is none."""
    try:
        step = orjson.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf
    return step if isinstance(step, int) and line.endswith(b"\n") else math.inf
