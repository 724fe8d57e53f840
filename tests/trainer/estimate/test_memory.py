"""Estimated memory, by formula and by tracing, against exact figures and real processes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from trainer.components.model import model_config
from trainer.compute.device import choose_device
from trainer.estimate.formula import formula_peak
from trainer.estimate.memory import Peak, step_memory
from trainer.estimate.traced_step import traced_peak
from trainer.settings.train import TrainSettings

both_ways = pytest.mark.parametrize("peak", [formula_peak, traced_peak])


@both_ways
def test_weights_gradients_and_state_are_four_bytes_a_parameter_each(
    settings: TrainSettings, change: Callable[..., TrainSettings], peak: Peak
) -> None:
    device = choose_device("cpu", "float32")
    config = model_config(settings.model, 290)
    weights = 4 * config.num_parameters
    once = step_memory(settings, config, device, peak=peak)
    assert once.parameters == weights + 4 * config.head_dim // 2  # and the frequencies of RoPE
    assert 2 * weights <= once.optimizer <= 2 * weights + 8 * 64  # and a step counter for each tensor
    accumulated = step_memory(change(settings, total_batch_size=8), config, device, peak=peak)
    assert accumulated.gradients == weights
    assert accumulated.total - accumulated.process > once.total - once.process
    assert once.process > 50e6


@both_ways
@pytest.mark.parametrize(("momentum", "values"), [(0.0, 0), (0.9, 1)])
def test_sgd_keeps_at_most_one_value_for_each_parameter(
    settings: TrainSettings, change: Callable[..., TrainSettings], peak: Peak, momentum: float, values: int
) -> None:
    device, config = choose_device("cpu", "float32"), model_config(settings.model, 290)
    run = change(settings, optimizer="sgd", momentum=momentum)
    assert step_memory(run, config, device, peak=peak).optimizer == values * 4 * config.num_parameters


@both_ways
def test_activations_grow_with_the_batch(
    settings: TrainSettings, change: Callable[..., TrainSettings], peak: Peak
) -> None:
    device, config = choose_device("cpu", "float32"), model_config(settings.model, 290)
    small, large = (step_memory(change(settings, batch_size=size), config, device, peak=peak) for size in (32, 64))
    for name in ("attention", "feed-forward", "norms"):
        assert large.activations[name] == pytest.approx(2 * small.activations[name], rel=0.02)


@both_ways
def test_processes_share_the_windows_of_a_step(
    settings: TrainSettings, change: Callable[..., TrainSettings], peak: Peak
) -> None:
    """Two processes that share eight windows have four at once each, though eight would be allowed."""
    device, config = choose_device("cpu", "float32"), model_config(settings.model, 290)
    shared = step_memory(change(settings, batch_size=8), config, device, processes=2, peak=peak)
    alone = step_memory(change(settings, batch_size=4), config, device, peak=peak)
    assert (shared.activations, shared.gradients) == (alone.activations, alone.gradients)


def test_schedules_count_with_their_largest_pass(settings: TrainSettings, change: Callable[..., TrainSettings]) -> None:
    """Windows of half the length go through the model twice as many at once; a larger early batch accumulates."""
    device, config = choose_device("cpu", "float32"), model_config(settings.model, 290)
    plain = step_memory(settings, config, device)
    as_many_tokens = change(settings, batch_schedule="8:5", context_schedule="8:5")
    assert replace(step_memory(as_many_tokens, config, device), process=0) == replace(plain, process=0)
    accumulated = step_memory(change(settings, batch_schedule="16:5"), config, device)
    assert accumulated.gradients == 4 * config.num_parameters
    assert accumulated.gradients > plain.gradients


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="gaps of the allocator are known for glibc")
@pytest.mark.parametrize(
    "options",
    [
        "--d-model 128 --num-layers 4 --context-length 128 --batch-size 16",
        "--d-model 128 --num-layers 4 --context-length 128 --batch-size 8 --total-batch-size 32",
        "--d-model 128 --num-layers 4 --context-length 128 --batch-size 32 --dtype bfloat16",
        "--d-model 128 --num-layers 4 --context-length 128 --batch-size 16 --optimizer muon --dropout 0.1",
        "--d-model 128 --num-layers 4 --context-length 128 --batch-size 16 --document-mask --z-loss 1e-4",
        "--d-model 128 --num-layers 4 --context-length 128 --batch-size 16 --optimizer sgd",
        "--d-model 256 --num-layers 8 --context-length 256 --batch-size 8 --checkpoint-activations",
        "--preset cs336 --batch-size 8 --total-batch-size 8",
    ],
)
def test_real_steps_take_what_was_estimated(options: str) -> None:
    """The most that a process of its own ever held, within 10 %."""
    command = [sys.executable, "-m", "trainer", "estimate", "--vocab-size", "4096", "--measure", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--device", "cpu", *options.split()], capture_output=True, text=True, check=True, env=environment
    )
    found = json.loads(done.stdout)
    assert found["speed"]["measured"]["peak_bytes"] == pytest.approx(found["memory"]["total"], rel=0.1)
