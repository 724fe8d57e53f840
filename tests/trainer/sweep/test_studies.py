"""The defaults that a study gives to settings that are left open, as the command line fills them."""

from pathlib import Path
from typing import Any

import pytest

from trainer import cli
from trainer.settings.file import SettingsFile


def bound_settings(*options: object, file: dict[str, Any] | None = None) -> Any:
    """What `sweep` is called with."""
    table = () if file is None else (SettingsFile(file, "sweep.toml"),)
    before, cli.app.config = cli.app.config, (*table, *cli.DERIVED_OPTIONS)
    try:
        _, bound, _ = cli.app.parse_args(["sweep", *map(str, options), "--output", "s"], exit_on_error=False)
    finally:
        cli.app.config = before
    return bound.arguments["settings"].model


@pytest.mark.parametrize(
    ("options", "file", "expected"),
    [
        (["ablations"], None, (False, "normal")),
        (["ablations", "--qk-norm"], None, (True, "normal")),
        (["ablations", "--initialization", "mimetic"], None, (False, "mimetic")),
        (["ablations"], {"qk_norm": True}, (True, "normal")),
        ([], {"experiment": "ablations"}, (False, "normal")),
        (["learning-rate"], None, (True, "mimetic")),
        (["--grid", "seed=1,2"], None, (True, "mimetic")),
    ],
)
def test_ablations_have_no_other_norm_and_plain_weights_unless_asked(
    options: list[str], file: dict[str, Any] | None, expected: tuple[bool, str]
) -> None:
    """So that "none" means none."""
    model = bound_settings(*options, file=file)
    assert (model.qk_norm, model.initialization) == expected


def test_a_depth_sets_the_size_of_ablations(token_folder: Path) -> None:
    model = bound_settings("ablations", "--depth", 2, "--data", token_folder)
    assert (model.num_layers, model.d_model, model.qk_norm, model.initialization) == (2, 128, False, "normal")


def test_a_published_initialization_stays_in_ablations(token_folder: Path) -> None:
    model = bound_settings("ablations", "--preset", "cs336", "--data", token_folder)
    assert (model.qk_norm, model.initialization) == (False, "xavier")
    improved = bound_settings("ablations", "--preset", "cs336", "--improved", "--data", token_folder)
    assert (improved.qk_norm, improved.initialization) == (False, "normal")
