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

    A record is one line in one write, so that a killed run leaves complete lines; NaN and infinity become null, since
    JSON has neither.

    Attributes:
        listener: Called with each record after it was written.
    """

    listener: Callable[[Mapping[str, Any]], None] | None = None

    def __init__(self, path: Path) -> None:
        self._path = path

    def rewind(self, step: int) -> None:
        """Drop the records of later steps and a truncated last line; create the file where it is missing.

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
        """Flush what was written to the disk, so that it survives a power cut like a checkpoint.

        Raises:
            TrainerError: flushing failed.
        """
        try:
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> TrainerError:
        return TrainerError(f"{self._path} cannot be written: {error.strerror}")


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file, also of a running or a killed run; lines that are not records are skipped.

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
    """The step of a record; infinity for a line that is not one."""
    try:
        step = orjson.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf
    return step if isinstance(step, int) and line.endswith(b"\n") else math.inf
