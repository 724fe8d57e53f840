"""The largest batch that fits, and the advice for a run that does not."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.components.model import model_config
from trainer.compute.device import Device, choose_device
from trainer.errors import UsageError
from trainer.estimate.fitting import check_fit, largest_batch, largest_that_fits, with_batch
from trainer.estimate.memory import step_memory
from trainer.settings.train import TrainSettings
from trainer.training.run import prepare_run

CPU = choose_device("cpu", "float32")


@pytest.fixture(autouse=True)
def same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the program itself takes stays the same while a test compares."""
    monkeypatch.setattr("trainer.estimate.memory.resident_memory", lambda: 300_000_000)


def takes(settings: TrainSettings) -> int:
    return step_memory(settings, model_config(settings.model, 290), CPU).total


@given(st.integers(1, 50), st.integers(0, 500), st.integers(1, 300), st.integers(0, 9000), st.integers(0, 40))
def test_search_finds_what_counting_finds(slope: int, offset: int, most: int, limit: int, bend: int) -> None:
    def size(number: int) -> int:
        return max(offset + slope * number, 2 * slope * (number - bend))

    expected = max((number for number in range(1, most + 1) if size(number) <= limit), default=0)
    assert largest_that_fits(limit, size, most) == expected


def test_the_largest_batch_fits_and_one_more_does_not(settings: TrainSettings) -> None:
    room = takes(with_batch(settings, 4)) + 5_000_000
    most = largest_batch(settings, model_config(settings.model, 290), CPU, room)
    assert most > 4
    assert takes(with_batch(settings, most)) <= room < takes(with_batch(settings, most + 1))


def test_a_run_that_cannot_fit_is_refused_with_which_accumulation_does(
    settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    wide = change(settings, batch_size=512)
    room = takes(with_batch(settings, 100))
    with pytest.raises(UsageError, match="does not fit into memory: a step takes about") as refused:
        check_fit(wide, model_config(settings.model, 290), CPU, room)
    assert "the same batch fits with --batch-size 64 --total-batch-size 512" in str(refused.value)
    assert takes(with_batch(settings, 64, 512)) <= room < takes(with_batch(settings, 128, 512))


def test_without_room_for_one_window_checkpointing_is_named(
    settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    long = change(settings, context_length=2048, batch_size=4, num_layers=8)
    room = takes(change(long, batch_size=2, total_batch_size=4, checkpoint_activations=True))
    assert takes(change(long, batch_size=1, total_batch_size=4)) > room
    with pytest.raises(UsageError, match=r"fits with --checkpoint-activations --batch-size 2 --total-batch-size 4$"):
        check_fit(long, model_config(long.model, 290), CPU, room)


def test_without_room_for_one_window_a_shorter_context_is_named(
    settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    long = change(settings, context_length=2048, batch_size=1)
    room = takes(change(long, context_length=512, checkpoint_activations=True))
    options = "--context-length 512 --checkpoint-activations --batch-size 1 --total-batch-size 1"
    with pytest.raises(UsageError, match=f"one fits with {options}$"):
        check_fit(long, model_config(long.model, 290), CPU, room)


def test_else_a_smaller_model_is_named(settings: TrainSettings, change: Callable[..., TrainSettings]) -> None:
    deep = change(settings, num_layers=20, batch_size=1)
    config = model_config(deep.model, 290)
    with pytest.raises(UsageError, match="too large; it fits with --num-layers 6 --checkpoint-act"):
        check_fit(deep, config, CPU, takes(change(deep, num_layers=6, checkpoint_activations=True)))
    with pytest.raises(UsageError, match="choose a smaller --d-model or vocabulary"):
        check_fit(deep, config, CPU, 1000)


def test_a_run_within_the_error_of_the_estimate_is_tried(
    settings: TrainSettings, change: Callable[..., TrainSettings], caplog: pytest.LogCaptureFixture
) -> None:
    """Who knows better than an estimate that is a tenth too high needs no switch."""
    wide = change(settings, batch_size=512)
    config = model_config(settings.model, 290)
    room = 300_000_000 + int(0.91 * (takes(wide) - 300_000_000))
    check_fit(wide, config, CPU, room)
    assert "may not fit into memory: a step takes about" in caplog.text
    assert "if memory runs out, the same batch fits with --batch-size 256 --total-batch-size 512" in caplog.text
    caplog.clear()
    check_fit(wide, config, CPU, takes(wide))
    assert not caplog.records
    with pytest.raises(UsageError, match="does not fit"):
        check_fit(wide, config, CPU, 300_000_000 + int(0.89 * (takes(wide) - 300_000_000)))


def test_training_refuses_before_anything_is_written(settings: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.training.run.available_memory", lambda _: 1000)
    with pytest.raises(UsageError, match="does not fit into memory"):
        prepare_run(settings)
    assert not settings.output.exists()


def test_on_a_gpu_only_what_is_certain_is_refused(
    settings: TrainSettings, change: Callable[..., TrainSettings], caplog: pytest.LogCaptureFixture
) -> None:
    """Its kernels were not measured there; weights, gradients and AdamW's state are 16 bytes a parameter."""
    gpu = Device(torch.device("cuda"), torch.bfloat16)
    wide, config = change(settings, batch_size=512), model_config(settings.model, 290)
    certain = step_memory(wide, config, gpu).least
    assert certain == pytest.approx(16 * config.num_parameters, rel=0.01)
    assert certain < 0.1 * step_memory(wide, config, gpu).total
    check_fit(wide, config, gpu, certain)
    assert "by a formula that was not measured on such a device, so the run starts; if memory runs out" in caplog.text
    with pytest.raises(UsageError, match="does not fit into memory"):
        check_fit(wide, config, gpu, certain - 1)
