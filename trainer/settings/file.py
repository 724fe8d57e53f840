"""Option values from a TOML file for `--config`, or from a table."""

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cyclopts
from cyclopts import App, ArgumentCollection, CycloptsError

from trainer.errors import UsageError


class SettingsFile(cyclopts.config.Dict):
    """The options of one command from a table; values from the command line take precedence.

    Keys are option names with `_` (or `-`) between the words. An unknown key is refused with the nearest name, which
    cyclopts itself finds for long names only.
    """

    def __init__(self, table: Mapping[str, Any], source: str) -> None:
        super().__init__(data=dict(table), source=source)

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:  # noqa: ARG002
        """Fill the arguments that the command line left open (cyclopts calls this)."""
        names = [name.removeprefix("--").replace("-", "_") for a in arguments if a.parse for name in a.names]
        for key in self.config:
            if key.replace("-", "_") not in names:
                close = difflib.get_close_matches(key, names, n=1)
                hint = f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(sorted(set(names)))}."
                raise CycloptsError(msg=f"{self.source}: unknown key {key!r}. {hint}")
        # No commands: cyclopts would look for a table of that name, or else drop keys that are also names of commands,
        # such as `schedule`.
        super().__call__(app, (), arguments)


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
    return SettingsFile(data, str(path))


def _as_texts(table: Mapping[str, Any]) -> list[str]:
    """A table of lists as values of one option: NAME=[VALUE, VALUE]. JSON lists of numbers and strings are TOML too."""
    return [f"{name}={json.dumps(values if isinstance(values, list) else [values])}" for name, values in table.items()]
