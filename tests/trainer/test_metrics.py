import json
import math
from pathlib import Path

from trainer.metrics import MetricsFile


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line, parse_constant=lambda name: 1 / 0) for line in path.read_text().splitlines()]


def test_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    metrics = MetricsFile(path, first_step=0)
    metrics.write(step=1, loss=math.nan, norm=math.inf, text="naïve\n")
    assert records(path) == [{"step": 1, "loss": None, "norm": None, "text": "naïve\n"}]


def test_going_on_drops_later_records_and_a_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 5}\n{"step": 10}\n{"step": 15}\n{"step": 2')
    MetricsFile(path, first_step=10).write(step=11)
    assert records(path) == [{"step": 5}, {"step": 10}, {"step": 11}]
