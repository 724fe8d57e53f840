"""The forecast of a run's time from its first steps."""

import logging
from collections.abc import Callable

import pytest

from trainer.settings.stages import Stage, StepShapes
from trainer.settings.train import TrainSettings
from trainer.training.forecast import Forecast
from trainer.training.loop import Step
from trainer.training.trainer import train

SHAPES = StepShapes((Stage(0, 10, 100),))


def take_steps(forecast: Forecast, first: int, last: int) -> None:
    """Steps of 2 s; the first five, of 100 s, are slow."""
    for number in range(first, last + 1):
        seconds = 100.0 if number < first + 5 else 2.0
        forecast.add(Step(number, loss=1.0, learning_rate=0.1, grad_norm=1.0, tokens=1000, seconds=seconds))


def test_it_is_logged_once_after_twenty_steps_and_leaves_out_the_slow_first(caplog: pytest.LogCaptureFixture) -> None:
    forecast = Forecast(1820, SHAPES)
    with caplog.at_level(logging.INFO):
        take_steps(forecast, 1, 19)
        assert not caplog.messages
        forecast.add(Step(20, loss=1.0, learning_rate=0.1, grad_norm=1.0, tokens=1000, seconds=2.0))
        take_steps(forecast, 21, 60)
    assert caplog.messages == ["step 20: 500 tokens/s measured; 1:00:00 left without evaluations and checkpoints"]


def test_a_resumed_run_has_one_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        take_steps(Forecast(150, SHAPES), 101, 150)
    assert caplog.messages == ["step 120: 500 tokens/s measured; 0:01:00 left without evaluations and checkpoints"]


def test_later_steps_of_more_tokens_take_as_much_longer(caplog: pytest.LogCaptureFixture) -> None:
    """70 further steps of 1,000 tokens and 10 of 3,000, at the measured 500 tokens/s."""
    with caplog.at_level(logging.INFO):
        take_steps(Forecast(100, StepShapes((Stage(0, 10, 100), Stage(90, 30, 100)))), 1, 20)
    assert caplog.messages == ["step 20: 500 tokens/s measured; 0:03:20 left without evaluations and checkpoints"]


def test_there_is_none_for_a_run_that_ends_before(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        take_steps(Forecast(20, SHAPES), 1, 20)
    assert not caplog.messages


def test_a_run_promises_no_time_before_it_is_measured(
    settings: TrainSettings, change: Callable[..., TrainSettings], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        train(change(settings, max_steps=22, stop_after=21))
    measured = [message for message in caplog.messages if "tokens/s" in message]
    assert [message for message in measured if message.startswith("step 20: ")] == measured[:1]
    assert measured[0].endswith("left without evaluations and checkpoints")
