"""`metrics.jsonl` read while it grows: always equal to reading all of it, without reading it again."""

import io
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from trainer.runs import metrics_table
from trainer.runs.metrics import MetricsFile
from trainer.runs.metrics_table import MetricsTable


def contents(table: MetricsTable) -> dict[str, Any]:
    curves = {key: column.curve() for key, column in table.columns.items() if len(column)}
    points = {
        key: list(zip(curve.steps.tolist(), map(repr, curve.values.tolist()), strict=True))
        for key, curve in curves.items()
    }
    return points | {"samples": table.samples, "events": table.events, "invalid": table.num_invalid}


def anew(path: Path) -> dict[str, Any]:
    table = MetricsTable(path)
    table.update()
    return contents(table)


def record(step: int, seconds: float, **more: Any) -> str:
    return json.dumps({"step": step, "tokens": 64 * step, "seconds": seconds, "loss": 5 / step, **more}) + "\n"


def test_it_equals_the_file_after_every_kind_of_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appended lines, halves of lines, returns to earlier steps, cuts in place, another run, deletion."""
    monkeypatch.setattr(metrics_table, "_BETWEEN_MARKS", 300)
    monkeypatch.setattr(metrics_table, "_CHUNK", 1_000)
    path, draw = tmp_path / "metrics.jsonl", random.Random(5)
    table, file, step, seconds = MetricsTable(path), MetricsFile(path), 0, 0.0
    seen = set()
    for _ in range(600):
        action = draw.choice(["append"] * 6 + ["half", "rewind", "cut", "replace", "delete", "nothing"])
        seen.add(action)
        if action == "append":
            for _ in range(draw.randrange(8)):
                step, seconds = step + 1, seconds + draw.random()
                extra = draw.choice(
                    [{}, {}, {"sample": f"Once {step}"}, {"event": "skipped"}, {"validation_loss": None}]
                )
                file.write(step=step, tokens=64 * step, seconds=seconds, loss=5 / step, **extra)
        elif action == "half":
            with path.open("a") as handle:
                handle.write(record(step + 1, seconds)[: draw.randrange(40)])
            table.update()
            file.rewind(step)
        elif action == "rewind":
            step = draw.randrange(step + 1)
            file.rewind(step)
        elif action == "cut" and path.exists():
            os.truncate(path, draw.randrange(path.stat().st_size + 1))
        elif action == "replace":
            step = draw.randrange(30)
            path.write_text("".join(record(i, draw.random()) for i in range(1, step + 1)))
        elif action == "delete":
            path.unlink(missing_ok=True)
            step = 0
        table.update()
        assert contents(table) == anew(path)
    assert len(seen) == 7


def test_a_return_to_a_checkpoint_reads_little_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(record(step, step / 8) for step in range(1, 100_001)))
    size, num_read = path.stat().st_size, 0

    class Counted(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:  # type: ignore[override]
            nonlocal num_read
            data = super().read(size)
            num_read += len(data)
            return data

    monkeypatch.setattr(metrics_table, "open_regular", Counted)
    monkeypatch.setattr(metrics_table, "_CHUNK", 100_000)
    table = MetricsTable(path)
    assert table.update()
    assert size > 5_000_000
    assert num_read == pytest.approx(size, rel=0.2)
    num_read = 0
    assert not table.update()
    assert num_read == 0
    MetricsFile(path).rewind(60_000)
    assert table.update()
    assert num_read < 2 * metrics_table._CHUNK
    assert table.columns["loss"].curve().steps[-1] == 60_000
    num_read = 0
    MetricsFile(path).write(step=60_001, tokens=1, seconds=9e9, loss=1.0)
    assert table.update()
    assert num_read < 1_000
    assert contents(table) == anew(path)


def test_half_of_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    table = MetricsTable(path)
    assert not table.update()
    path.write_text(record(1, 0.5) + record(2, 1.0)[:20])
    assert table.update()
    assert table.columns["loss"].curve().steps.tolist() == [1]
    path.write_text(record(1, 0.5) + record(2, 1.0))
    assert table.update()
    assert table.columns["loss"].curve().steps.tolist() == [1, 2]


def test_a_line_without_end_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_table, "_CHUNK", 500)
    path = tmp_path / "metrics.jsonl"
    path.write_text("x" * 5_000 + "\n" + record(3, 1.0))
    assert anew(path)["loss"] == [(3.0, repr(5 / 3))]


def test_a_pipe_in_its_place_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(OSError, match="found a FIFO"):
        MetricsTable(tmp_path / "metrics.jsonl").update()
