"""Memory recorded from the code of a training step."""

from collections.abc import Callable

import pytest
import torch

from trainer.components.model import model_config
from trainer.compute.device import choose_device
from trainer.estimate import traced_step
from trainer.estimate.memory import step_memory
from trainer.estimate.traced_step import traced_peak
from trainer.settings.train import TrainSettings


def test_tracing_leaves_the_random_state(settings: TrainSettings) -> None:
    before = torch.get_rng_state()
    step_memory(settings, model_config(settings.model, 290), choose_device("cpu", "float32"), peak=traced_peak)
    assert torch.equal(before, torch.get_rng_state())


def test_a_batch_too_large_to_trace_is_extrapolated_from_smaller_ones(
    settings: TrainSettings, change: Callable[..., TrainSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, config = choose_device("cpu", "float32"), model_config(settings.model, 290)
    whole = step_memory(change(settings, batch_size=128), config, device, peak=traced_peak)
    monkeypatch.setattr(traced_step, "_TRACED_TOKENS", 32 * config.context_length)
    extrapolated = step_memory(change(settings, batch_size=128), config, device, peak=traced_peak)
    assert extrapolated.total == pytest.approx(whole.total, rel=0.01)
    assert step_memory(change(settings, batch_size=10**9), config, device, peak=traced_peak).total > 10**12
