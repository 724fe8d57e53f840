"""Settings from tables."""

import pytest

from trainer.errors import UsageError
from trainer.recipes.options import parse_train_settings
from trainer.settings.train import TrainSettings, to_table


def test_a_table_gives_the_settings_it_came_from(settings: TrainSettings) -> None:
    table = {name: value for name, value in to_table(settings).items() if value is not None}
    assert parse_train_settings(table, source="test") == settings


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"d_modle": 3}, r"^run 1: unknown key 'd_modle'. Did you mean 'd_model'\?$"),
        ({"batch_size": 1.5}, r"^run 1: .*1\.5"),
        *(
            pytest.param(
                {name: value},
                f"^run 1: {name} must be a whole number; got {value}$",
                marks=pytest.mark.case("D51"),
            )
            for name, value in {
                "max_steps": 2.9,
                "keep": 2.7,
                "warmup_steps": 1.01,
                "seed": -0.5,
                "threads": 1.5,
            }.items()
        ),
        ({"max_steps": "9007199254740993.0"}, r"must be a whole number; got 9007199254740993\.0$"),  # no float
        ({"batch_size": 0}, "--batch-size must be at least 1; got 0"),
        ({"initialization": "mimic"}, r"^run 1: .*mimic"),
    ],
)
def test_what_is_wrong_is_named_with_its_source(
    settings: TrainSettings, changed: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        parse_train_settings({"data": "d", "output": "o"} | changed, source="run 1")


@pytest.mark.case("D51")
@pytest.mark.parametrize("value", [3, 3.0, "3", "3.0", "0x3"])
def test_whole_numbers_may_be_written_in_any_way(value: object) -> None:
    settings = parse_train_settings({"data": "d", "output": "o", "max_steps": value}, source="run 1")
    assert settings.optimization.max_steps == 3
