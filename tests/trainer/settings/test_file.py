"""Settings from tables."""

from pathlib import Path

import pytest

from trainer import cli
from trainer.errors import UsageError
from trainer.settings.file import parse_train_settings, read_settings_file
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


@pytest.mark.case("D51")
@pytest.mark.parametrize("value", [3, 3.0, "3", "3.0", "0x3"])
def test_whole_numbers_may_be_written_in_any_way(value: object) -> None:
    settings = parse_train_settings({"data": "d", "output": "o", "max_steps": value}, source="run 1")
    assert settings.optimization.max_steps == 3


@pytest.mark.case("D51")
@pytest.mark.parametrize(
    "arguments",
    [
        "train --data d --output o --max-steps 2.9",
        "estimate --vocab-size 300.5",
        "vocab text.txt --vocab-size 300.5 --output o",
        "encode text.txt --tokenizer t --output o --threads 1.5",
        "generate model --top-k 2.5",
        "evaluate model text.txt --stride 8.5",
        "sweep --data d --output o --grid seed=1,2 --keep 2.7",
        "train --data d --output o --depth 2.5",
    ],
)
def test_no_option_of_any_command_is_rounded(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.app.meta(arguments.split())
    assert ended.value.code == 2
    assert "must be a whole number" in capsys.readouterr().err
