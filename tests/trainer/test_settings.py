import tomllib
from pathlib import Path

import pytest

from trainer.errors import UsageError
from trainer.settings import (
    MachineSettings,
    ModelSettings,
    OptimizationSettings,
    TrainSettings,
    WatchSettings,
    to_table,
    to_toml,
)


def test_a_total_batch_that_cannot_be_cut_is_refused_with_its_neighbours() -> None:
    """B89."""
    with pytest.raises(UsageError, match=r"multiple of batch_size \(8\), so 16 or 24; got 20"):
        OptimizationSettings(batch_size=8, total_batch_size=20)


@pytest.mark.parametrize(
    ("settings", "values", "message"),
    [
        (ModelSettings, {"d_model": 0}, "d_model must be at least 1; got 0"),
        (
            OptimizationSettings,
            {"learning_rate": float("nan")},
            "learning_rate must be a finite .* at least 0; got nan",
        ),
        (OptimizationSettings, {"learning_rate": float("inf")}, "must be a finite number of at least 0; got inf"),
        (OptimizationSettings, {"max_steps": 10**29}, "max_steps must be at most 9223372036854775807; got 1000"),
        (MachineSettings, {"threads": 100_000}, "threads must be from 1 to 1024; got 100000"),
        (OptimizationSettings, {"learning_rate": 0.0}, "learning_rate must be above 0"),
        (OptimizationSettings, {"min_learning_rate_ratio": 1.5}, "from 0 to 1; got 1.5"),
        (OptimizationSettings, {"betas": (0.9, 1.0)}, "betas must be at least 0 and below 1"),
        (WatchSettings, {"log_interval": 0}, "log_interval must be at least 1; got 0"),
        (WatchSettings, {"temperature": -1.0}, "temperature must be from 0 to 100; got -1.0"),
        (WatchSettings, {"top_p": 1.5}, "top_p must be from 0 to 1; got 1.5"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(settings: type, values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings(**values)


def test_settings_come_back_from_toml() -> None:
    watch = WatchSettings(sample_prompt='a "quoted" \\ line\nand \x7f, naïve 😀')
    settings = TrainSettings(data=Path("a b"), output=Path("c"), watch=watch)
    read = tomllib.loads(to_toml(settings))
    assert read == {name: value for name, value in to_table(settings).items() if value is not None}
    assert read["sample_prompt"] == watch.sample_prompt
    assert read["betas"] == [0.9, 0.99]
