"""What a step is expected to reach of the rate of its matrix products."""

from dataclasses import replace

import pytest
import torch

from trainer.components.model import model_config
from trainer.compute.device import Device, choose_device
from trainer.estimate.estimate import estimate_run
from trainer.estimate.speed import usual_utilization
from trainer.estimate.target import target_here
from trainer.settings.train import TrainSettings


@pytest.mark.parametrize(("dtype", "share"), [("float32", 0.7), ("bfloat16", 0.5)])
def test_in_bfloat16_less_of_the_faster_products_is_expected(
    settings: TrainSettings, monkeypatch: pytest.MonkeyPatch, dtype: str, share: float
) -> None:
    """What a step does beside products takes as long in either precision (docs/lab/log.md has the measurements)."""
    monkeypatch.setattr("trainer.estimate.estimate.matmul_rate", lambda *_: 1e11)
    target = replace(target_here(choose_device("cpu", dtype)), devices=2)
    found = estimate_run(settings, model_config(settings.model, 290), target)
    assert found.speed is not None
    assert found.speed.flops_per_second == 2 * share * 1e11
    assert found.speed.tokens_per_second == settings.tokens_per_step * 2 * share * 1e11 / found.step_flops


def test_on_gpus_the_precision_makes_no_difference() -> None:
    shares = {usual_utilization(Device(torch.device("cuda"), dtype)) for dtype in (torch.float32, torch.bfloat16)}
    assert shares == {0.4}
