"""Settings from tables."""

from pathlib import Path

import pytest

from trainer.errors import UsageError
from trainer.settings import TrainSettings, to_table
from trainer.settings_file import parse_train_settings, read_settings_file


def test_a_table_gives_the_settings_it_came_from(settings: TrainSettings) -> None:
    table = {name: value for name, value in to_table(settings).items() if value is not None}
    assert parse_train_settings(table, source="test") == settings


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"d_modle": 3}, r"^run 1: unknown key 'd_modle'. Did you mean 'd_model'\?$"),
        ({"batch_size": 1.5}, r"^run 1: .*1\.5"),
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ({"initialization": "mimic"}, r"^run 1: .*mimic"),
    ],
)
def test_what_is_wrong_is_named_with_its_source(
    settings: TrainSettings, changed: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        parse_train_settings({"data": "d", "output": "o"} | changed, source="run 1")


def test_tables_in_a_file_are_axes_of_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('seed = 1\n[grid]\nlearning_rate = [1e-4, 1e-3]\ninitialization = ["a, b"]\n')
    assert read_settings_file(tmp_path / "s.toml").config == {
        "seed": 1,
        "grid": ["learning_rate=[0.0001, 0.001]", 'initialization=["a, b"]'],
    }
