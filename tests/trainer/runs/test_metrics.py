import errno
import json
import math
import os
from pathlib import Path

import pytest

from trainer.errors import TrainerError
from trainer.runs.metrics import MetricsFile


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line, parse_constant=lambda name: 1 / 0) for line in path.read_text().splitlines()]


def test_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    metrics = MetricsFile(path)
    metrics.rewind(0)
    metrics.write(step=1, loss=math.nan, norm=math.inf, text="naïve\n")
    assert records(path) == [{"step": 1, "loss": None, "norm": None, "text": "naïve\n"}]


def test_going_on_drops_later_records_and_a_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 5}\n{"step": 10}\n{"step": 15}\n{"step": 2')
    metrics = MetricsFile(path)
    metrics.rewind(10)
    metrics.write(step=11)
    assert records(path) == [{"step": 5}, {"step": 10}, {"step": 11}]


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """B87."""
    path = tmp_path / "m.jsonl"
    metrics = MetricsFile(path)
    metrics.rewind(0)
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(TrainerError, match=r"m.jsonl cannot be written: No space left on device"):
        metrics.write(step=1)


def test_what_is_dropped_is_dropped_in_one_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B87: where the disk is full while it is written anew, the old file stays."""
    path = tmp_path / "m.jsonl"
    before = '{"step": 5}\n{"step": 15}\n'
    path.write_text(before)
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
    with pytest.raises(TrainerError, match="cannot be written: No space left"):
        MetricsFile(path).rewind(10)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("m.jsonl", before)]
