"""A run folder read back, of runs that ended in every way."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.runs.results import is_run, read_run


def write(folder: Path, records: list[dict[str, Any]], *, settings: str = "max_steps = 20\n", tail: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.toml").write_text(settings)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + tail)
    return folder


def finished(folder: Path) -> Path:
    (folder / "model").mkdir()
    (folder / "model" / "ownlm.json").touch()
    return folder


def falling(steps: int) -> list[dict[str, Any]]:
    return [{"step": i, "loss": 8.0 / i, "tokens": i * 100, "seconds": i * 0.5} for i in range(1, steps + 1)]


def test_a_finished_run(tmp_path: Path) -> None:
    records = [*falling(20), {"step": 20, "validation_loss": 0.5, "bits_per_byte": 0.2}, {"step": 9, "sample": "Once"}]
    run = read_run(finished(write(tmp_path / "run", records)))
    assert (run.name, run.status, run.last_step) == ("run", "finished", 20)
    assert run.final_loss == pytest.approx((8 / 19 + 8 / 20) / 2)
    assert (run.final("validation_loss"), run.best("validation_loss")) == (0.5, (0.5, 20))
    assert run.samples == [(9, "Once")]
    assert run.at("seconds", run.curve("loss").steps)[3] == 2.0
    assert run.settings == {"max_steps": 20}


def test_a_run_that_was_killed_while_it_wrote(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, falling(5), tail='{"step": 6, "lo'))
    assert (run.status, run.last_step, len(run.curve("loss"))) == ("unfinished", 5, 5)


def test_no_number_at_the_end_is_divergence(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, [*falling(5), {"step": 6, "loss": None}]))
    assert run.status == "diverged"
    assert math.isnan(run.final_loss or 0)
    assert run.final("loss") is None


def test_a_loss_above_where_it_began_is_divergence_even_with_a_model(tmp_path: Path) -> None:
    records = [{"step": i, "loss": 8.0 if i < 3 else 9.0 + i} for i in range(1, 21)]
    assert read_run(finished(write(tmp_path, records))).status == "diverged"


def test_a_loss_that_came_back_from_far_above_is_divergence(tmp_path: Path) -> None:
    """A learning rate of 1 on stories: the decay to 0 brought the loss back from 11 to below its start."""
    tenths = [7.7, 6.8, 8.1, 11.2, 9.8, 8.6, 6.5, 6.3, 6.2, 6.0]
    records = [{"step": i + 1, "loss": tenths[i // 10]} for i in range(100)]
    run = read_run(finished(write(tmp_path / "back", records)))
    assert (run.status, run.highest_loss) == ("diverged", pytest.approx(11.2))
    spike = [{"step": i + 1, "loss": 40.0 if i == 50 else 7.7 - i / 50} for i in range(100)]
    assert read_run(finished(write(tmp_path / "spike", spike))).status == "finished"


def test_of_two_records_of_a_step_the_last_counts(tmp_path: Path) -> None:
    """As where a file was put together by hand from a run and its resumption."""
    records = [{"step": step, "loss": loss} for step, loss in [(1, 5.0), (2, 4.0), (3, 3.0), (2, 4.5), (3, 3.5)]]
    curve = read_run(write(tmp_path, records)).curve("loss")
    assert curve.steps.tolist() == [1, 2, 3]
    assert curve.values.tolist() == [5.0, 4.5, 3.5]


@pytest.mark.parametrize("content", [None, b"", b"\x00\xff\n[]\n5\nnull\n", b'{"step": "a"}\n{"loss": 3}\n'])
def test_without_a_record_it_is_empty(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "train.toml").write_text("this = is no TOML")
    if content is not None:
        (tmp_path / "metrics.jsonl").write_bytes(content)
    run = read_run(tmp_path)
    assert (run.status, run.last_step, run.settings, run.parameters, run.tokens_per_second) == (
        *("empty", 0, {}, None),
        None,
    )
    assert is_run(tmp_path)
    assert not is_run(tmp_path / "none")


def test_runs_are_read_without_torch() -> None:
    """Whose import takes seconds and 200 MB, which a sweep would hold beside each of its runs."""
    code = "import sys, trainer.runs.results, trainer.report.build; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
