"""What the guard against divergence does in a run of two processes where the data of one of them is to blame."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.runs_in_processes import Job, run, torchrun
from trainer.processes import ONE_PROCESS
from trainer.settings import (
    CheckpointSettings,
    DivergenceSettings,
    MachineSettings,
    ModelSettings,
    OptimizationSettings,
    TrainSettings,
    WatchSettings,
)

NAN, SPIKE = 3, 21
"""Batches that are bad in one process; 21 losses come before the second, enough to tell a spike by."""


@pytest.fixture(scope="module")
def runs(token_folder: Path, change: Callable[..., TrainSettings], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of two processes, and in `alone` some of this process alone."""
    folder = tmp_path_factory.mktemp("runs")
    small = TrainSettings(
        data=token_folder,
        output=folder,
        model=ModelSettings(d_model=32, num_layers=1, num_heads=2, num_kv_heads=1, d_ff=48, context_length=16),
        optimization=OptimizationSettings(max_steps=6, batch_size=2, total_batch_size=4, warmup_steps=2),
        watch=WatchSettings(log_interval=1, eval_interval=0, sample_interval=0, sample_prompt="the"),
        checkpoints=CheckpointSettings(checkpoint_interval=2),
        machine=MachineSettings(device="cpu"),
        divergence=DivergenceSettings(on_divergence="rollback"),
    )

    def jobs(where: Path) -> dict[str, Job]:
        def job(name: str, batch: int = NAN, factor: float = float("nan"), **settings: object) -> Job:
            return Job(change(small, output=where / name, **settings), bad_batches=(batch,), factor=factor)

        return {
            "skip": job("skip", on_divergence="skip"),
            "rollback": job("rollback", rollback_learning_rate_factor=0.5),
            "fsdp": job("fsdp", parallel="fsdp"),
            "last": job("last", max_steps=NAN + 1),
            "spike": job("spike", SPIKE, 100.0, spike_threshold=10.0, max_steps=SPIKE + 1, checkpoint_interval=10),
            "weight": Job(change(small, output=where / "weight"), fault="weight"),
            "stop": job("stop", on_divergence="stop"),
        }

    done = torchrun(folder / "jobs", [*jobs(folder).values()])
    (folder / "stderr").write_text(done.stderr)
    assert done.returncode == 1, done.stderr  # the last one stops
    for name in ("rollback", "spike"):
        run(jobs(folder / "alone")[name], ONE_PROCESS)
    return folder


def notes(run: Path, rank: int) -> list[str]:
    """What a process did, without its losses."""
    return [line.split(",")[0] for line in (run / f"notes-{rank}").read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("skip", ["1", "2", "3", "4 left out", "5", "6"]),
        ("rollback", ["1", "2", "3", "back to 2", "3", "4", "5", "6"]),
        ("fsdp", ["1", "2", "3", "back to 2", "3", "4", "5", "6"]),
        ("last", ["1", "2", "3", "back to 2", "3", "4"]),
        ("spike", [*map(str, range(1, 22)), "back to 20", "21", "22"]),
        ("weight", ["1", "2", "back to 0", "1", "2", "3", "4", "5", "6"]),
        ("stop", ["1", "2", "3", "stopped at 4"]),
    ],
)
def test_both_processes_do_the_same_at_the_same_step(runs: Path, name: str, steps: list[str]) -> None:
    """Their losses are equal to the bit: else they would not train one model any more."""
    assert notes(runs / name, 0) == steps
    assert (runs / name / "notes-0").read_text() == (runs / name / "notes-1").read_text()


@pytest.mark.parametrize("name", ["rollback", "spike"])
def test_what_comes_of_it_is_what_one_process_makes_of_it(runs: Path, name: str) -> None:
    """Of one process all windows of the batch are bad, of two those of the second: either way none of it is learnt."""
    weights, expected = (load_file(path / name / "model/model.safetensors") for path in (runs, runs / "alone"))
    assert weights.keys() == expected.keys()
    for key, weight in weights.items():
        torch.testing.assert_close(weight, expected[key], rtol=0, atol=1e-5)


def test_the_reason_to_stop_is_said_once(runs: Path) -> None:
    stderr = (runs / "stderr").read_text()
    assert stderr.count("error: ") == 1
    assert "training diverged at step 4: loss nan" in stderr
    assert f"the last good checkpoint is {runs}/stop/checkpoints/step-00000002" in stderr


def test_a_weight_that_went_wrong_in_one_process_is_told(runs: Path) -> None:
    """The first process writes the metrics, the second has the weight."""
    assert (
        "after step 2 a weight of another process holds numbers that are not finite"
        in (runs / "weight/metrics.jsonl").read_text()
    )
