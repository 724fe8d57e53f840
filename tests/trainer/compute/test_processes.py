"""Runs of two processes against runs of one, sound or diverging. Of processes that fail: test_processes_failing.py."""

import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.runs_in_processes import Job, prepare, run, torchrun
from trainer.components.loss import IGNORED
from trainer.components.model import new_model
from trainer.compute.device import choose_device
from trainer.compute.processes import ONE_PROCESS, Processes, check_batch, join_processes
from trainer.errors import UsageError
from trainer.evaluation.validation import Evaluation, evaluate
from trainer.runs.metrics import read_metrics
from trainer.settings.train import (
    CheckpointSettings,
    MachineSettings,
    ModelSettings,
    OptimizationSettings,
    TrainSettings,
    WatchSettings,
)
from trainer.training.loop import accumulate_gradients
from trainer.training.trainer import train

pytestmark = pytest.mark.extended

STEPS, HALF = 6, 3
SWITCHES: dict[str, Any] = {
    "activation": "relu2",
    "logit_soft_cap": 15.0,
    "value_residual": True,
    "zero_outputs": "blocks",
    "initialization": "normal",
    "tie_embeddings": False,
    "embedding_learning_rate": 3e-2,
    "head_learning_rate": 5e-3,
    "batch_schedule": "3:2,4-6:5",
    "context_schedule": "8:4",
}
"""Experiments all at once; the checkpoint at half of the run is within the second stage of the batch."""
SGD = {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.5, "data_order": "uniform"}
NAN, SPIKE = 3, 21
"""Batches that are bad in one process; 21 losses come before the second, enough to tell a spike by."""


def run_settings(data: Path, output: Path) -> TrainSettings:
    """A run of six steps of three passes."""
    return TrainSettings(
        data=data,
        output=output,
        model=ModelSettings(d_model=32, num_layers=2, num_heads=2, num_kv_heads=1, d_ff=48, context_length=16),
        optimization=OptimizationSettings(
            max_steps=STEPS, batch_size=2, total_batch_size=6, learning_rate=1e-2, warmup_steps=2, clip_grad_norm=0.5
        ),
        watch=WatchSettings(
            log_interval=1,
            eval_interval=HALF,
            eval_tokens=277,
            sample_interval=HALF,
            sample_prompt="the",
            sample_tokens=5,
        ),
        checkpoints=CheckpointSettings(checkpoint_interval=HALF, keep=0),
        machine=MachineSettings(device="cpu"),
    )


@pytest.fixture(scope="module")
def runs(token_folder: Path, change: Callable[..., TrainSettings], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, those named `one...` of this process alone, the others of two processes."""
    folder = tmp_path_factory.mktemp("runs")
    half = f"checkpoints/step-{HALF:08d}"

    def settings(name: str, **changes: object) -> TrainSettings:
        return change(run_settings(token_folder, folder / name), **changes)

    alone = [
        Job(settings("one")),
        Job(settings("one-uneven", batch_size=5, total_batch_size=5)),
        Job(settings("one-muon", optimizer="muon")),
        Job(settings("one-sgd", **SGD)),
        Job(settings("one-bfloat16", dtype="bfloat16")),
        Job(settings("one-switches", **SWITCHES)),
    ]
    together = [
        Job(settings("ddp", profile=True)),  # those that go on from them have none, and are equal to the bit
        Job(settings("fsdp", parallel="fsdp", profile=True)),
        Job(settings("ddp-uneven", batch_size=5, total_batch_size=5)),
        Job(settings("fsdp-uneven", batch_size=5, total_batch_size=5, parallel="fsdp")),
        Job(settings("ddp-muon", optimizer="muon")),
        Job(settings("fsdp-muon", optimizer="muon", parallel="fsdp")),
        Job(settings("ddp-sgd", **SGD)),
        Job(settings("fsdp-sgd", parallel="fsdp", **SGD)),
        Job(settings("ddp-dropout", dropout=0.3)),
        Job(settings("fsdp-dropout", dropout=0.3, parallel="fsdp")),
        Job(settings("ddp-bfloat16", dtype="bfloat16")),
        Job(settings("fsdp-bfloat16", dtype="bfloat16", parallel="fsdp")),
        Job(settings("ddp-switches", checkpoint_activations=True, **SWITCHES)),  # unlike those that go on from them
        Job(settings("fsdp-switches", checkpoint_activations=True, parallel="fsdp", **SWITCHES)),
    ]
    resumed = [
        Job(settings(name, resume=True, **changes), start=folder / start / half)
        for name, start, changes in (
            ("ddp-from-ddp", "ddp", {}),
            ("fsdp-from-fsdp", "fsdp", {"parallel": "fsdp"}),
            ("ddp-from-fsdp", "fsdp", {}),
            ("fsdp-from-ddp", "ddp", {"parallel": "fsdp"}),
            ("fsdp-from-one", "one", {"parallel": "fsdp"}),
            ("fsdp-muon-from-ddp-muon", "ddp-muon", {"parallel": "fsdp", "optimizer": "muon"}),
            ("fsdp-sgd-from-fsdp-sgd", "fsdp-sgd", {"parallel": "fsdp", **SGD}),
            ("ddp-sgd-from-ddp-sgd", "ddp-sgd", SGD),
            ("ddp-dropout-from-ddp-dropout", "ddp-dropout", {"dropout": 0.3}),
            ("fsdp-dropout-from-fsdp-dropout", "fsdp-dropout", {"dropout": 0.3, "parallel": "fsdp"}),
            ("ddp-bfloat16-from-ddp-bfloat16", "ddp-bfloat16", {"dtype": "bfloat16"}),
            ("fsdp-bfloat16-from-fsdp-bfloat16", "fsdp-bfloat16", {"dtype": "bfloat16", "parallel": "fsdp"}),
            ("ddp-switches-from-ddp-switches", "ddp-switches", SWITCHES),
            ("fsdp-switches-from-fsdp-switches", "fsdp-switches", {"parallel": "fsdp", **SWITCHES}),
        )
    ]
    stopped = [Job(settings("stopped", max_steps=100), fault="SIGTERM")]
    bad = diverging(settings)
    for job in (*alone, *diverging(lambda name, **changes: settings(f"one-{name}", **changes))[:2]):
        run(job, ONE_PROCESS)
    done = torchrun(folder / "jobs", [*together, *resumed, *stopped, *bad])
    (folder / "stderr").write_text(done.stderr)
    assert "the last good checkpoint is" in done.stderr, done.stderr  # of the last one, which ends so
    last = Job(settings("one-from-fsdp", resume=True), start=folder / "fsdp" / half)
    prepare(last)
    train(last.settings)
    return folder


def diverging(settings: Callable[..., TrainSettings]) -> list[Job]:
    """Runs of which the last process gets bad data or, in one, a bad weight; the last of them ends so."""

    def job(name: str, batch: int = NAN, factor: float = float("nan"), **changes: object) -> Job:
        changes = {"on_divergence": "rollback", "checkpoint_interval": 2, **changes}
        quiet = settings(name, eval_interval=0, sample_interval=0, **changes)
        return Job(quiet, bad_batches=(batch,), factor=factor)

    return [
        job("rollback", rollback_learning_rate_factor=0.5),
        job("spike", SPIKE, 100.0, spike_threshold=10.0, max_steps=SPIKE + 1, checkpoint_interval=10),
        job("skip", on_divergence="skip"),
        job("fsdp-rollback", parallel="fsdp"),
        job("last", max_steps=NAN + 1),
        replace(job("weight"), bad_batches=(), fault="weight"),
        job("stop", on_divergence="stop"),
    ]


def losses(run: Path) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in read_metrics(run / "metrics.jsonl") if "loss" in record}


def tolerance(name: str) -> float:
    """Muon rounds to bfloat16 on the way, which makes more of a difference in the last bit of a gradient."""
    return 5e-3 if "muon" in name else 1e-5


def assert_equal(run: Path, other: Path, limit: float) -> None:
    """Same losses of the steps that both took, same final weights."""
    ours, theirs = losses(run), losses(other)
    assert ours.keys() >= set(range(HALF + 1, STEPS + 1))
    for step in ours.keys() & theirs.keys():
        assert math.isclose(ours[step], theirs[step], rel_tol=0, abs_tol=limit)
    weights, reference = load_file(run / "model/model.safetensors"), load_file(other / "model/model.safetensors")
    assert weights.keys() == reference.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, reference[name], rtol=0, atol=limit)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("variant", ["", "-uneven", "-muon", "-sgd", "-switches"])
def test_two_processes_equal_one(runs: Path, strategy: str, variant: str) -> None:
    """B83 (uneven: 3 windows against 2, and 5 passes of validation against 4), with accumulation and clipping."""
    assert_equal(runs / f"{strategy}{variant}", runs / f"one{variant}", tolerance(variant))


@pytest.mark.parametrize("run", ["ddp", "fsdp", "ddp-uneven"])
def test_evaluation_and_samples_equal_those_of_one_process(runs: Path, run: str) -> None:
    """B89: the number does not depend on how many processes share it."""
    found, expected = (
        [record for record in read_metrics(runs / name / "metrics.jsonl") if "loss" not in record]
        for name in (run, "one-uneven" if "uneven" in run else "one")
    )
    assert [record.get("sample") for record in found] == [record.get("sample") for record in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for key in ("validation_loss", "bits_per_byte"):
            if key in theirs:
                assert math.isclose(ours[key], theirs[key], rel_tol=0, abs_tol=1e-5)


@pytest.mark.parametrize("run", ["ddp-bfloat16", "fsdp-bfloat16"])
def test_two_processes_in_bfloat16_learn_what_one_does(runs: Path, run: str) -> None:
    """Each pass rounds its part of the gradients to 8 bits, so that only the losses are near each other."""
    ours, theirs, in_float32 = (losses(runs / name) for name in (run, "one-bfloat16", "one"))
    for step in range(1, STEPS + 1):
        assert math.isclose(ours[step], theirs[step], rel_tol=0, abs_tol=1e-3)
    assert ours != in_float32
    weights = load_file(runs / run / "model/model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


@pytest.mark.parametrize(
    "run",
    [f"{way}{variant}" for way in ("ddp", "fsdp") for variant in ("", "-sgd", "-dropout", "-bfloat16", "-switches")],
)
def test_resuming_with_as_many_processes_is_bitwise(runs: Path, run: str) -> None:
    assert_equal(runs / f"{run}-from-{run}", runs / run, 0)


@pytest.mark.parametrize(
    "run", ["ddp-from-fsdp", "fsdp-from-ddp", "fsdp-from-one", "one-from-fsdp", "fsdp-muon-from-ddp-muon"]
)
def test_checkpoints_cross_between_ways_to_train(runs: Path, run: str) -> None:
    assert_equal(runs / run, runs / ("one-muon" if "muon" in run else "one"), tolerance(run))


@pytest.mark.slow
def test_resuming_three_processes_is_bitwise(
    token_folder: Path, change: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    """Two numbers have one sum in either order, three do not: DDP's buckets must be those of the uninterrupted run."""
    whole = run_settings(token_folder, tmp_path / "whole")
    rest = change(run_settings(token_folder, tmp_path / "rest"), resume=True)
    start = tmp_path / f"whole/checkpoints/step-{HALF:08d}"
    done = torchrun(tmp_path / "jobs", [Job(whole), Job(rest, start=start)], processes=3)
    assert done.returncode == 0, done.stderr
    assert_equal(tmp_path / "rest", tmp_path / "whole", 0)


@pytest.mark.parametrize("run", ["ddp", "fsdp"])
def test_the_first_process_writes_the_profile_of_all(runs: Path, run: str) -> None:
    content = json.loads((runs / run / "profile.json").read_text())
    settings = run_settings(runs, runs)
    assert content["processes"] == 2
    assert content["amount"] == settings.optimization.max_steps * settings.tokens_per_step
    calls = {use["name"]: use["calls"] for use in content["stages"]}
    assert calls["synchronization"] == content["measured_steps"] == 1
    assert calls["forward"] == 2, "passes"
    assert len(content["traced_steps"]) == 3
    assert (runs / run / "profile_trace.json.gz").stat().st_size > 1000


def test_dropout_differs_between_processes(runs: Path) -> None:
    """Else two processes would drop out the same units of their windows."""
    draws = []
    for processes in (Processes(0, 2), Processes(1, 2)):
        processes.seed_step(seed=1, step=5)
        draws.append(torch.rand(8))
    state = torch.get_rng_state()
    ONE_PROCESS.seed_step(seed=1, step=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(*draws)
    assert losses(runs / "ddp-dropout") != losses(runs / "ddp")


def test_a_signal_to_one_process_stops_all_at_the_same_step(runs: Path) -> None:
    marks = sorted(path.name for path in (runs / "stopped").glob("stopped-*"))
    assert len(marks) == 2
    assert {mark.split("-")[2] for mark in marks} == {"3"}
    assert [path.name for path in sorted((runs / "stopped/checkpoints").iterdir())] == ["step-00000003"]


def notes(run: Path, rank: int) -> list[str]:
    """What a process did, without its losses."""
    return [line.split(",")[0] for line in (run / f"notes-{rank}").read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("skip", ["1", "2", "3", "4 left out", "5", "6"]),
        ("rollback", ["1", "2", "3", "back to 2", "3", "4", "5", "6"]),
        ("fsdp-rollback", ["1", "2", "3", "back to 2", "3", "4", "5", "6"]),
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
def test_a_bad_share_of_a_batch_is_left_out_like_a_bad_batch(runs: Path, name: str) -> None:
    """Of one process all windows are bad: either way none of them is trained on."""
    assert_equal(runs / name, runs / f"one-{name}", 1e-5)


def test_the_reason_to_stop_is_said_once(runs: Path) -> None:
    stderr = (runs / "stderr").read_text()
    assert stderr.count("error: ") == 1
    assert "training diverged at step 4: loss nan" in stderr
    assert f"the last good checkpoint is {runs}/stop/checkpoints/step-00000002" in stderr


def test_a_weight_that_went_wrong_in_one_process_is_told(runs: Path) -> None:
    """The first process writes the metrics, the second has the weight."""
    assert "NaN or infinite weight after step 2: in another process" in (runs / "weight/metrics.jsonl").read_text()


def test_evaluation_shared_unevenly_equals_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """B83, B89: 9 batches, 5 for one process and 4 for the other."""
    settings = ModelSettings(d_model=32, num_layers=1, num_heads=2, d_ff=48, context_length=8)
    model = new_model(settings, vocab_size=64, seed=0)
    tokens = np.random.default_rng(0).integers(0, 64, 8 * 17 + 4)

    def score(processes: Processes, batch_size: int) -> Evaluation:
        return evaluate(
            model,
            [tokens],
            torch.ones(64, dtype=torch.int64),
            context_length=8,
            batch_size=batch_size,
            device=choose_device("cpu"),
            processes=processes,
        )

    alone = score(ONE_PROCESS, 3)
    monkeypatch.setattr(Processes, "all_reduce", lambda _self, values: list(values))
    parts = [score(Processes(rank, 2), 2) for rank in range(2)]
    assert parts[0].tokens > parts[1].tokens
    assert parts[0].tokens + parts[1].tokens == alone.tokens == len(tokens) - 1
    assert math.isclose((parts[0] + parts[1]).loss, alone.loss, rel_tol=0, abs_tol=1e-6)


def test_shares_cover_every_window_once_and_are_equally_long() -> None:
    """B83: 5 windows of 3 processes; what is added is not scored."""
    inputs, targets = torch.arange(10).view(5, 2), torch.arange(10).view(5, 2) + 1
    shares = [Processes(rank, 3).share(inputs, targets) for rank in range(3)]
    assert {len(share[0]) for share in shares} == {2}
    scored = torch.cat([share[0][share[1][:, 0] != IGNORED] for share in shares])
    assert torch.equal(scored, inputs)


def test_a_process_without_scored_targets_adds_nothing() -> None:
    """B82."""
    weight = torch.ones(1, requires_grad=True)

    def loss(inputs, targets, *, scale, z_loss):  # type: ignore[no-untyped-def]
        value = scale * (targets != IGNORED).sum() * weight.sum()
        return value, value.detach()

    part = accumulate_gradients(
        loss,
        torch.zeros(1, 4, dtype=torch.int64),
        torch.zeros(1, 4, dtype=torch.int64),
        batch_size=1,
        device=choose_device("cpu"),
        processes=Processes(1, 2),
    )
    assert part == 0
    assert weight.grad == 0


def test_batches_that_processes_cannot_share(
    settings: TrainSettings, change: Callable[..., TrainSettings], caplog: pytest.LogCaptureFixture
) -> None:
    """B89."""
    with pytest.raises(UsageError, match=r"4 windows .* cannot be shared by 5 processes"):
        check_batch(settings, Processes(0, 5))
    message = r"2 windows \(--batch-schedule\) .* by 3 processes; set --batch-schedule to 3"
    with pytest.raises(UsageError, match=message):
        check_batch(change(settings, batch_schedule="3:2,2:4"), Processes(0, 3))
    message = "--batch-schedule: 9 windows of 8 tokens are more than the 64 tokens of a full"
    with pytest.raises(UsageError, match=message):
        check_batch(change(settings, batch_schedule="9:5", context_schedule="8:5"), Processes(0, 1))
    check_batch(change(settings, batch_schedule="8:5", context_schedule="8:5"), Processes(0, 1))
    check_batch(settings, Processes(0, 4))
    assert not caplog.records
    check_batch(settings, Processes(0, 3))
    assert "--total-batch-size 6 would" in caplog.text


def test_without_torchrun_nothing_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in ("1", "8"):  # 8 alone is what some schedulers set
        monkeypatch.setenv("WORLD_SIZE", count)
        with join_processes(MachineSettings(device="cpu")) as (processes, device):
            assert (processes.rank, processes.count, str(device.torch_device)) == (0, 1, "cpu")
            assert not torch.distributed.is_initialized()
            assert processes.all_reduce([1.5]) == [1.5]


def test_the_end_of_the_launcher_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(0, 2, launcher=-1)
    monkeypatch.setattr(Processes, "all_reduce", lambda _self, values: list(values))
    assert processes.agree([1.0], None) == ([1.0], signal.SIGTERM)
    processes = Processes(0, 2, launcher=os.getppid())
    assert processes.agree([1.0], None) == ([1.0], None)
