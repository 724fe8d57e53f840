"""Settings files."""

from pathlib import Path

import pytest

from trainer.cli import app
from trainer.settings.file import read_settings_file


def test_tables_in_a_file_are_axes_of_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('seed = 1\n[grid]\nlearning_rate = [1e-4, 1e-3]\ninitialization = ["a, b"]\n')
    assert read_settings_file(tmp_path / "s.toml").config == {
        "seed": 1,
        "grid": ["learning_rate=[0.0001, 0.001]", 'initialization=["a, b"]'],
    }


def test_a_setting_may_have_the_name_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`schedule` is both: cyclopts drops such keys of a flat file without a word."""
    (tmp_path / "s.toml").write_text('schedule = "wsd"\nmax_steps = 7\n')
    monkeypatch.setattr(app, "config", (read_settings_file(tmp_path / "s.toml"),))
    assert "schedule" in app
    for command in (["train", "--data", "d", "--output", "o"], ["schedule"], ["estimate"]):
        _, bound, _ = app.parse_args(command, exit_on_error=False, print_error=False)
        optimization = bound.arguments["settings"].optimization
        assert (optimization.schedule, optimization.max_steps) == ("wsd", 7), command
