import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.components.schedule import scheduled_learning_rate
from trainer.errors import UsageError
from trainer.settings.train import (
    MachineSettings,
    ModelSettings,
    OptimizationSettings,
    TrainSettings,
    WatchSettings,
    to_table,
    to_toml,
)


def test_a_total_batch_that_cannot_be_cut_is_refused_with_its_neighbors() -> None:
    """B89."""
    with pytest.raises(UsageError, match=r"multiple of --batch-size \(8\), so 16 or 24; got 20"):
        OptimizationSettings(batch_size=8, total_batch_size=20)


@pytest.mark.parametrize("option", ["data", "output"])
def test_a_folder_that_toml_cannot_name_is_refused_before_the_run(option: str) -> None:
    folders = {"data": Path("tokens"), "output": Path("run"), option: Path("b\udcffd")}
    with pytest.raises(UsageError, match=rf"^--{option} 'b\\udcffd' is not UTF-8, in which the settings .*: rename"):
        TrainSettings(**folders)


@pytest.mark.parametrize(
    ("settings", "values", "message"),
    [
        (ModelSettings, {"d_model": 0}, "--d-model must be at least 1; got 0"),
        (
            OptimizationSettings,
            {"learning_rate": float("nan")},
            "--learning-rate must be a finite .* at least 0; got nan",
        ),
        (OptimizationSettings, {"learning_rate": float("inf")}, "must be a finite number of at least 0; got inf"),
        (OptimizationSettings, {"max_steps": 10**29}, "--max-steps must be at most 9223372036854775807; got 1000"),
        *(
            pytest.param(OptimizationSettings, values, message, marks=pytest.mark.case("D46"))
            for values, message in (
                ({"warmup_steps": 20, "max_steps": 10}, r"--warmup-steps \(20\) must be below --max-steps \(10\)"),
                ({"warmup_steps": 10, "max_steps": 10}, r"--warmup-steps \(10\) must be below --max-steps \(10\)"),
                (
                    {"warmup_steps": 10, "max_steps": 10, "schedule": "wsd", "decay_share": 1.0},
                    r"--warmup-steps \(10\) must be below --max-steps \(10\)",
                ),
                (
                    {"warmup_steps": 60, "max_steps": 100, "schedule": "wsd", "decay_share": 0.5},
                    r"--warmup-steps \(60\) must be below --max-steps \(100\) "
                    r"by the 50 steps of --decay-share \(0\.5\)",
                ),
                ({"warmup_steps": 1, "max_steps": 1, "schedule": "constant"}, r"\(1\) must be below --max-steps \(1\)"),
                ({"warmup_steps": -1}, "--warmup-steps must be at least 0; got -1"),
            )
        ),
        (MachineSettings, {"threads": 100_000}, "--threads must be from 1 to 1024; got 100000"),
        (OptimizationSettings, {"min_learning_rate_ratio": 1.5}, "from 0 to 1; got 1.5"),
        (OptimizationSettings, {"betas": (0.9, 1.0)}, "--betas must be at least 0 and below 1"),
        (WatchSettings, {"log_interval": 0}, "--log-interval must be at least 1; got 0"),
        (WatchSettings, {"temperature": -1.0}, "--temperature must be from 0 to 100; got -1.0"),
        (WatchSettings, {"top_p": 1.5}, "--top-p must be from 0 to 1; got 1.5"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(settings: type, values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings(**values)


@pytest.mark.case("D46")
@pytest.mark.parametrize(
    ("settings", "warmup_steps"),
    [
        ({}, 100),
        ({"max_steps": 500}, 100),
        ({"max_steps": 499}, 99),
        ({"max_steps": 10}, 2),
        ({"max_steps": 1}, 0),
        ({"max_steps": 100, "schedule": "wsd", "decay_share": 0.95}, 5),
        ({"max_steps": 100, "schedule": "wsd", "decay_share": 1.0}, 20),
        ({"max_steps": 100, "schedule": "cosine", "decay_share": 0.95}, 20),
        ({"max_steps": 10, "warmup_steps": 9}, 9),
        ({"max_steps": 1, "warmup_steps": 0}, 0),
    ],
)
def test_a_warm_up_that_is_left_open_fits_into_the_run(settings: dict[str, Any], warmup_steps: int) -> None:
    assert OptimizationSettings(**settings).warmup_steps == warmup_steps


@pytest.mark.case("D46")
@given(max_steps=st.integers(1, 3000), share=st.floats(0, 1), schedule=st.sampled_from(["cosine", "wsd", "constant"]))
def test_with_the_longest_warm_up_a_schedule_reaches_its_peak_and_falls_for_its_share(
    max_steps: int, share: float, schedule: Literal["cosine", "wsd", "constant"]
) -> None:
    o = OptimizationSettings(max_steps=max_steps, schedule=schedule, decay_share=share, min_learning_rate_ratio=0.0)
    o = replace(o, warmup_steps=o.longest_warmup)
    rates = [scheduled_learning_rate(step, o) for step in range(max_steps)]
    assert max(rates) == rates[o.longest_warmup] == o.learning_rate
    if schedule == "wsd" and share < 1:
        falling = sum(rate < o.learning_rate for rate in rates[o.longest_warmup :])
        assert falling == max(0, round(share * max_steps) - 1)  # from the peak on


def test_settings_come_back_from_toml() -> None:
    watch = WatchSettings(sample_prompt='a "quoted" \\ line\nand \x7f, naïve 😀')
    settings = TrainSettings(data=Path("a b"), output=Path("c"), watch=watch)
    read = tomllib.loads(to_toml(settings))
    assert read == {name: value for name, value in to_table(settings).items() if value is not None}
    assert read["sample_prompt"] == watch.sample_prompt
    assert read["betas"] == [0.9, 0.99]
