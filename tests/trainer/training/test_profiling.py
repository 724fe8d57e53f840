"""Where the time of a run goes."""

import gzip
import json
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from shared.lm import load_model_folder
from shared.system.stages import current_stage, no_stage
from trainer.errors import InterruptedRunError
from trainer.runs.profile_text import profile_text
from trainer.settings.train import TrainSettings
from trainer.training import profiling
from trainer.training import trainer as trainer_module
from trainer.training.profiling import plan_steps
from trainer.training.step_trace import operator_rows
from trainer.training.trainer import train

pytestmark = pytest.mark.extended

Change = Callable[..., TrainSettings]

PROFILE_FILES = ("profile.json", "profile.txt", "profile_trace.json.gz")


def profile_of(settings: TrainSettings) -> dict[str, Any]:
    return json.loads((settings.output / "profile.json").read_text())  # type: ignore[no-any-return]


def stages_of(settings: TrainSettings) -> dict[str, dict[str, Any]]:
    return {use["name"]: use for use in profile_of(settings)["stages"]}


def spans(settings: TrainSettings) -> Counter[str]:
    """How often each name is in the trace."""
    trace = json.loads(gzip.decompress((settings.output / "profile_trace.json.gz").read_bytes()))
    return Counter(event["name"] for event in trace["traceEvents"] if event.get("ph") == "X")


def losses(settings: TrainSettings) -> list[float]:
    records = map(json.loads, (settings.output / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if "loss" in record]


@pytest.mark.parametrize(
    ("steps", "warmup", "traced"),
    [
        (1, 0, []),
        (2, 0, [1]),
        (3, 1, [2]),
        (4, 1, [2, 3]),
        (10, 4, [7, 8, 9]),
        (23, 5, [20, 21, 22]),
        (10_000, 5, [20, 21, 22]),
    ],
)
def test_a_step_is_left_to_measure(steps: int, warmup: int, traced: list[int]) -> None:
    assert plan_steps(steps) == (warmup, range(traced[0], traced[-1] + 1) if traced else range(max(1, steps), 1))


def test_a_profiled_run_is_the_plain_one_to_the_bit(settings: TrainSettings, change: Change) -> None:
    plain = change(settings, dropout=0.5, eval_interval=5, sample_interval=5)
    profiled = change(plain, profile=True, output=settings.output.with_name("profiled"))
    for each in (plain, profiled):
        train(each)
    assert losses(plain) == losses(profiled)
    one, other = (load_model_folder(each.output / "model").model.state_dict() for each in (plain, profiled))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not any((plain.output / name).exists() for name in PROFILE_FILES)
    assert current_stage.get() is no_stage

    content, stages = profile_of(profiled), stages_of(profiled)
    assert (content["steps"], content["warmup_steps"], content["measured_steps"]) == (10, 4, 3)
    assert content["amount"] == 10 * 4 * 16
    calls = {
        "preparation": 1,
        "warm-up": 4,
        "traced steps": 3,
        "forward": 3,
        "loss": 3,
        "backward": 3,
        "clipping": 3,
        "synchronization": 3,
        "optimizer": 3,
        "evaluation": 2,
        "samples": 1,
        "checkpoints": 2,
        "save model": 1,
    }
    assert {name: stages[name]["calls"] for name in calls} == calls
    assert {"data", "logging", "rest of the step", "other"} == set(stages) - set(calls)
    for name in ("forward", "loss", "backward"):
        assert stages[name]["amount"] == 3 * 4 * 16
    assert sum(use["seconds"] for use in stages.values()) == pytest.approx(content["seconds"], rel=1e-3)
    assert sum(use["share"] for use in stages.values()) == pytest.approx(1)
    in_steps = sum(stages[name]["seconds"] for name in ("forward", "loss", "backward", "clipping", "optimizer"))
    assert 3 * 64 / content["tokens_per_second"] >= in_steps
    assert content["utilization"] == content["flops_per_second"] / content["matmul_flops_per_second"]
    assert content["peak_memory"] >= max(use["peak_memory"] for use in stages.values()) > 0

    assert content["traced_steps"] == [8, 9, 10]
    found = spans(profiled)
    assert [found[name] for name in ("forward", "loss", "backward", "clipping", "optimizer")] == [3] * 5
    operators = {row["name"]: row for row in content["operators"]}
    assert "aten::mm" in operators
    assert "forward" not in operators
    assert sum(row["share"] for row in operators.values()) == pytest.approx(1)
    text = (profiled.output / "profile.txt").read_text()
    assert text == profile_text(content)
    assert "traced: steps 8 to 10" in text
    assert "aten::mm" in text
    assert "profile = false" in (profiled.output / "train.toml").read_text(), "the profile is of one start"


def test_a_trace_grows_neither_with_steps_nor_with_passes(settings: TrainSettings, change: Change) -> None:
    settings = change(settings, profile=True, batch_size=1, total_batch_size=12)
    train(settings)
    content = profile_of(settings)
    assert content["traced_steps"] == [8]
    assert content["measured_steps"] == 5
    found = spans(settings)
    assert [found[name] for name in ("forward", "backward", "optimizer")] == [4, 4, 1]


def test_a_trace_ends_where_steps_become_large(settings: TrainSettings, change: Change) -> None:
    settings = change(settings, profile=True, batch_size=1, total_batch_size=40, batch_schedule="1:8")
    train(settings)
    assert profile_of(settings)["traced_steps"] == [8, 9]
    found = spans(settings)
    # The one pass of step 8, and five of the forty of step 9: four more than the step before had.
    assert [found[name] for name in ("forward", "backward", "optimizer")] == [6, 6, 1]


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def after(self: Any, done: Any, report: Any) -> None:
        real(self, done, report)
        if done.number == step:
            os.kill(os.getpid(), signal.SIGINT)

    real = trainer_module.Trainer._after
    monkeypatch.setattr(trainer_module.Trainer, "_after", after)


@pytest.mark.parametrize(("step", "traced"), [(3, []), (8, [8])])
def test_an_interrupted_run_has_a_profile_and_a_resumed_one_its_own(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch, step: int, traced: list[int]
) -> None:
    settings = change(settings, profile=True)
    with monkeypatch.context() as patch:
        stop_after(step, patch)
        with pytest.raises(InterruptedRunError):
            train(settings)
    content = profile_of(settings)
    assert (content["steps"], content["traced_steps"]) == (step, traced)
    assert (settings.output / "profile_trace.json.gz").exists() is bool(traced)
    assert ("traced: no step" in (settings.output / "profile.txt").read_text()) is not bool(traced)
    assert stages_of(settings)["checkpoints"]["calls"] >= 1
    train(change(settings, resume=True, stop_after=step + 1))
    content = profile_of(settings)
    assert (content["steps"], content["measured_steps"], content["traced_steps"]) == (1, 1, [])
    assert not (settings.output / "profile_trace.json.gz").exists(), "that of the earlier start"
    train(change(settings, overwrite=True, profile=False))
    assert not any((settings.output / name).exists() for name in PROFILE_FILES)


def test_a_profile_that_cannot_be_written_is_no_fault_of_the_run(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "profile.json")

    monkeypatch.setattr(profiling, "write_profile", full)
    monkeypatch.setattr(profiling.StepTrace, "stop", full)
    settings = change(settings, profile=True, max_steps=3, warmup_steps=0)
    with caplog.at_level(logging.WARNING):
        assert train(settings) == settings.output / "model"
    assert [record.message.partition(": ")[0] for record in caplog.records] == [
        "profile",
        "no profile could be written",
    ]


def test_rolled_back_steps_are_counted_again(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.errors import DivergedError

    settings = change(settings, profile=True, on_divergence="rollback", checkpoint_interval=2)
    real, calls = trainer_module.training_steps, []

    def steps(*arguments: Any, **options: Any) -> Any:
        for done in real(*arguments, **options):
            calls.append(done.number)
            if calls.count(8) == 1 and done.number == 8:
                raise DivergedError("bad", 8)
            yield done

    monkeypatch.setattr(trainer_module, "training_steps", steps)
    train(settings)
    assert profile_of(settings)["steps"] == len(calls) - 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # of torch itself
def test_a_compiled_run_has_the_same_stages(settings: TrainSettings, change: Change) -> None:
    settings = change(settings, profile=True, compile=True)
    train(settings)
    stages = stages_of(settings)
    assert [stages[name]["calls"] for name in ("forward", "loss", "backward", "optimizer")] == [3] * 4
    assert spans(settings)["loss"] == 3


def test_a_run_that_fails_in_its_first_traced_step_has_a_profile(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(*arguments: Any, **options: Any) -> Any:
        for done in real(*arguments, **options):
            if done.number == 8:
                raise OSError("gone")
            yield done

    real = trainer_module.training_steps
    settings = change(settings, profile=True)
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "training_steps", steps)
        with pytest.raises(OSError, match="gone"):
            train(settings)
    assert (profile_of(settings)["steps"], profile_of(settings)["traced_steps"]) == (7, [])
    train(change(settings, resume=True))
    assert profile_of(settings)["traced_steps"], "the profiler is free for another trace"


def test_operators_beyond_thirty_are_one_row() -> None:
    class Average:
        def __init__(self, number: int):
            self.key, self.count, self.is_user_annotation = f"op{number}", 1, False
            self.device_type = torch._C._autograd.DeviceType.CPU
            self.self_cpu_time_total = self.cpu_time_total = number * 1e6
            self.self_device_time_total = self.device_time_total = 0
            self.self_cpu_memory_usage, self.self_device_memory_usage = 1, 0

    rows = operator_rows([Average(number) for number in range(1, 41)])
    assert [row["name"] for row in rows] == [*(f"op{number}" for number in range(40, 10, -1)), "10 others"]
    assert (rows[-1]["seconds"], rows[-1]["calls"], rows[-1]["memory"]) == (55, 10, 10)
    assert rows[0]["share"] == 40 / 820
    assert operator_rows([]) == []
