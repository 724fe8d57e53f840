"""Settings files."""

from pathlib import Path

from trainer.settings.file import read_settings_file


def test_tables_in_a_file_are_axes_of_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('seed = 1\n[grid]\nlearning_rate = [1e-4, 1e-3]\ninitialization = ["a, b"]\n')
    assert read_settings_file(tmp_path / "s.toml").config == {
        "seed": 1,
        "grid": ["learning_rate=[0.0001, 0.001]", 'initialization=["a, b"]'],
    }
