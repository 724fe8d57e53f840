"""What a step is expected to reach of the rate of its matrix products."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from shared.lm.accounting import forward_flops, optimizer_flops
from trainer.components.model import model_config
from trainer.compute.device import Device, choose_device
from trainer.estimate.estimate import estimate_run
from trainer.estimate.speed import usual_utilization
from trainer.estimate.target import target_here
from trainer.settings.train import ModelSettings, TrainSettings

CS336 = ModelSettings(
    d_model=512, num_layers=4, num_heads=16, d_ff=1_344, context_length=256, tie_embeddings=False, qk_norm=False
)


@pytest.mark.parametrize(
    ("dtype", "rate", "threads", "measured"),
    [
        # AMD Zen 5 with AVX-512, one core; Intel Xeon with AMX, two: the rate of products, and tokens a second
        # (docs/lab/benchmarks.md; on the Xeon the kernels were a prototype of ours).
        ("bfloat16", 0.399e12, 1, 2_048 / 0.705),
        ("float32", 0.168e12, 1, 2_048 / 1.71),
        ("bfloat16", 1.75e12, 2, 4_350 * 1.83),
        ("float32", 0.37e12, 2, 2_059 * 1.09),
    ],
)
def test_measured_steps_on_two_processors_are_met_within_15_percent(
    settings: TrainSettings, monkeypatch: pytest.MonkeyPatch, dtype: str, rate: float, threads: int, measured: float
) -> None:
    monkeypatch.setattr("trainer.estimate.estimate.matmul_rate", lambda *_: rate)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    settings = replace(settings, model=CS336, optimization=replace(settings.optimization, batch_size=8))
    found = estimate_run(settings, model_config(CS336, 10_000), target_here(choose_device("cpu", dtype)))
    assert found.speed is not None
    assert found.speed.tokens_per_second == pytest.approx(measured, rel=0.15)


def test_two_processors_are_twice_as_fast(settings: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.estimate.estimate.matmul_rate", lambda *_: 1e11)
    one = target_here(choose_device("cpu", "float32"))
    speeds = [
        estimate_run(settings, model_config(settings.model, 290), target).speed
        for target in (one, replace(one, devices=2))
    ]
    assert speeds[0] is not None
    assert speeds[1] is not None
    assert speeds[1].flops_per_second == pytest.approx(2 * speeds[0].flops_per_second)


def test_on_gpus_the_precision_makes_no_difference(settings: TrainSettings) -> None:
    config = model_config(settings.model, 290)
    for dtype in (torch.float32, torch.bfloat16):
        assert usual_utilization(settings, config, Device(torch.device("cuda"), dtype), 1e12, 1e12) == 0.4


def test_a_scheduled_run_takes_the_time_of_its_stages(
    settings: TrainSettings, change: Callable[..., TrainSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 steps of 1 window and 2 of 2, all of 8 tokens, then 6 of 4 windows of 16: by the operations of each."""
    monkeypatch.setattr("trainer.estimate.estimate.matmul_rate", lambda *_: 1e11)
    run = change(settings, batch_schedule="1:2,2:4", context_schedule="8:4")
    config = model_config(settings.model, 290)
    found = estimate_run(run, config, target_here(choose_device("cpu", "float32")))
    assert found.speed is not None
    assert found.run_tokens == 2 * 8 + 2 * 16 + 6 * 64
    passes = [(1, 8)] * 2 + [(2, 8)] * 2 + [(4, 16)] * 6
    flops = sum(
        3 * forward_flops(config, sequences=windows, length=length).total + optimizer_flops(config)
        for windows, length in passes
    )
    assert found.seconds(found.run_tokens) == pytest.approx(flops / found.speed.flops_per_second)
    assert found.seconds(8) == pytest.approx(found.seconds(16) / 2)


def test_what_is_computed_again_takes_time(settings: TrainSettings, change: Callable[..., TrainSettings]) -> None:
    """Three passes of products through the layers become four; nothing of the output projection is computed again."""
    config, gpu = model_config(settings.model, 290), Device(torch.device("cuda"), torch.bfloat16)
    forward = forward_flops(config, sequences=settings.total_batch_size)
    flops = 3 * forward.total
    again = change(settings, checkpoint_activations=True)
    shares = [usual_utilization(each, config, gpu, 1e12, flops) for each in (settings, again)]
    assert shares[0] / shares[1] == pytest.approx(1 + (forward.total - forward.output) / flops)
