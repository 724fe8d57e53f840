"""Settings from TOML: files for `--config`, and the tables of a sweep's runs."""

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cyclopts
from cyclopts import App, ArgumentCollection, CycloptsError, Parameter

from trainer.errors import UsageError
from trainer.recipes.options import DialOptions
from trainer.settings.train import TrainSettings
from trainer.settings.whole_numbers import refuse_fractions


class SettingsFile(cyclopts.config.Dict):
    """The options of one command from a TOML file; what the command line says wins over it.

    Keys are the options' names with `_` (or `-`) between the words. A key that is no option is refused.
    """

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Fill the arguments that the command line left open (cyclopts calls this)."""
        names = [name.removeprefix("--").replace("-", "_") for a in arguments if a.parse for name in a.names]
        for key in self.config:
            if key.replace("-", "_") not in names:
                close = difflib.get_close_matches(key, names, n=1)
                hint = f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(sorted(set(names)))}."
                raise CycloptsError(msg=f"{self.source}: unknown key {key!r}. {hint}")
        super().__call__(app, commands, arguments)


def read_settings_file(path: Path) -> SettingsFile:
    """Read a TOML file of settings.

    Raises:
        UsageError: the file cannot be read, or is not TOML.
    """
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read --config {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"--config {path} is not valid TOML: {error}") from error
    data = {name: _as_texts(value) if isinstance(value, dict) else value for name, value in table.items()}
    return SettingsFile(data=data, source=str(path), use_commands_as_keys=False)


def _as_texts(table: Mapping[str, Any]) -> list[str]:
    """A table of lists as an option takes it: NAME=[VALUE, VALUE]; JSON's lists of numbers and texts are TOML's too."""
    return [f"{name}={json.dumps(values if isinstance(values, list) else [values])}" for name, values in table.items()]


def parse_train_settings(table: Mapping[str, Any], *, source: str) -> TrainSettings:
    """Settings from a flat table, read as `train --config` reads its file.

    Args:
        table: The settings that are not the defaults.
        source: Where they come from, for the message.

    Raises:
        UsageError: a key or a value is wrong.
    """
    config = SettingsFile(data=dict(table), source=source, use_commands_as_keys=False)
    app = App(
        config=(config, refuse_fractions, DialOptions(told=False)), default_parameter=Parameter(negative_iterable=())
    )

    @app.default
    def settings_of(*, settings: TrainSettings) -> TrainSettings:
        return settings

    try:
        _, bound, _ = app.parse_args([], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise UsageError(f"{source}: {error}".replace(f"{source}: {source}", source)) from error
    settings: TrainSettings = bound.arguments["settings"]
    return settings
