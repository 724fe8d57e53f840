"""The command `schedule`, as a person meets it."""

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from rich.console import Console

from trainer.commands.schedule import schedule
from trainer.components.schedule import scheduled_learning_rate
from trainer.errors import UsageError
from trainer.report.schedule import save_rates, schedule_table
from trainer.settings.plan import PlanSettings
from trainer.settings.train import OptimizationSettings, TrainSettings, to_toml
from trainer.training.trainer import train


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "trainer", "schedule", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_reference_values_of_cs336(tmp_path: Path) -> None:
    """`test_get_lr_cosine_schedule` of assignment 1: warm-up 7, end 21, from 1 to 0.1; its t is our step - 1."""
    file = tmp_path / "rates.csv"
    options = ["--max-steps", 21, "--warmup-steps", 7, "--learning-rate", 1, "--min-learning-rate-ratio", 0.1]
    done = run(*options, "--warmup-from-zero", "--save", file)
    assert done.returncode == 0, done.stderr
    rows = [line.split(",") for line in file.read_text().splitlines()]
    assert rows[0] == ["step", "learning_rate"]
    rates = {int(step): float(rate) for step, rate in rows[1:]}
    assert list(rates) == list(range(1, 22))
    published = {0: 0, 1: 0.14285714285714285, 7: 1.0, 8: 0.9887175604818206, 14: 0.55, 20: 0.11128243951817937}
    for t, rate in published.items():
        assert rates[t + 1] == pytest.approx(rate, rel=1e-7)
    assert "0.55" in done.stdout
    assert "cosine, max_steps 21, warmup_steps 7 from 0" in done.stdout


def test_they_are_the_rates_that_the_run_then_has(settings: TrainSettings, tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text(to_toml(settings))
    done = run("--config", file, "--save", tmp_path / "rates.csv")
    assert done.returncode == 0, done.stderr
    train(settings)
    lines = (settings.output / "metrics.jsonl").read_text().splitlines()
    recorded = [line.split('"learning_rate":')[1].split(",")[0] for line in lines if "learning_rate" in line]
    saved = [line.split(",")[1] for line in (tmp_path / "rates.csv").read_text().splitlines()[1:]]
    assert list(map(float, recorded)) == list(map(float, saved))
    assert float(saved[-1]) == scheduled_learning_rate(9, settings.optimization)


@pytest.mark.extended
def test_a_preset_without_data_or_vocabulary_is_drawn(tmp_path: Path) -> None:
    done = run("--preset", "cs336", "--save", tmp_path / "new" / "rates.svg")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new" / "rates.svg").read_bytes().startswith(b"<?xml")
    assert "max_steps 5,000, warmup_steps 250 from 0" in done.stdout
    assert "Derived from --preset cs336:" in done.stderr


def test_a_picture_for_documents(settings: TrainSettings, tmp_path: Path) -> None:
    save_rates(settings, tmp_path / "rates.PNG")
    assert (tmp_path / "rates.PNG").read_bytes().startswith(b"\x89PNG")


def test_a_depth_needs_the_vocabulary() -> None:
    done = run("--depth", 4)
    assert done.returncode == 2
    assert "need the vocabulary size: give --data or --vocab-size" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"save": Path("rates.pdf")}, r"--save rates\.pdf: the name must end in \.csv, \.svg or \.png"),
        ({"save": Path("rates")}, "the name must end in"),
        ({"save": Path("r.csv")}, r"--max-steps is 3,000,000, .* at most 2,000,000 rows; save \.svg or \.png"),
        ({"vocab_size": 0}, "vocab-size must be at least 1; got 0"),
    ],
)
def test_wrong_usage(options: dict[str, Any], message: str) -> None:
    long = PlanSettings(optimization=OptimizationSettings(max_steps=3_000_000))
    with pytest.raises(UsageError, match=message):
        schedule(settings=long, **options)


@pytest.mark.parametrize("steps", [1, 2, 25, 26, 2**62])
@pytest.mark.parametrize("shape", ["cosine", "wsd", "constant"])
def test_runs_of_any_length(settings: TrainSettings, steps: int, shape: Literal["cosine", "wsd", "constant"]) -> None:
    long = replace(settings, optimization=OptimizationSettings(max_steps=steps, schedule=shape))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(schedule_table(long))
    lines = console.export_text().splitlines()
    assert f"max_steps {steps:,}" in lines[0]
    assert len({len(line) for line in lines[2:10]}) == 1
    assert f"│ {steps:,}" in lines[-2]


def test_a_place_that_cannot_be_written_is_named(settings: TrainSettings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        save_rates(settings, tmp_path / "file" / "rates.csv")
