"""`metrics.jsonl`: one JSON object a line, for plots and comparisons."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson


class MetricsFile:
    """Appends records that carry their `step`.

    A record is one line, written at once, so that a killed run leaves whole lines; what is not a finite number becomes
    null, since JSON has no NaN.

    Attributes:
        listener: Gets each record after it was written.
    """

    listener: Callable[[Mapping[str, Any]], None] | None = None

    def __init__(self, path: Path, *, first_step: int) -> None:
        """Open the file for a run that goes on after `first_step`; records of later steps are dropped."""
        kept = [line for line in _read_lines(path) if json.loads(line)["step"] <= first_step]
        path.write_text("".join(kept), encoding="utf-8")
        self._path = path

    def write(self, **record: Any) -> None:
        """Append one record."""
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite, allow_nan=False) + "\n")
        if self.listener is not None:
            self.listener(finite)


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


def _read_lines(path: Path) -> list[str]:
    """The file's whole lines; a last one cut short by a kill is left out."""
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
