"""The axes of a sweep from option texts: `NAME=VALUE,VALUE,…`."""

import tomllib
from collections.abc import Sequence
from typing import Any

from trainer.errors import UsageError

NOT_VARIED = ("output", "resume", "overwrite", "stop_after", "config")
"""Settings that belong to the sweep, not to one of its runs."""


def parse_axes(texts: Sequence[str], *, option: str) -> dict[str, list[Any]]:
    """Axes from `NAME=VALUE,VALUE,…`, each value as TOML writes it, or a bare word.

    Raises:
        UsageError: not of this form, a setting that cannot vary, a name that comes twice, or an axis without values.
    """
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not values.strip():
            raise UsageError(f"{option} expects NAME=VALUE,VALUE,… such as learning_rate=1e-3,3e-3; got {text!r}")
        if name in NOT_VARIED:
            raise UsageError(f"{option} {name}: the sweep sets it for each run")
        if name in axes:
            raise UsageError(f"{option} {name} is given twice; put all its values into one")
        axes[name] = _parse_values(values.strip(), f"{option} {text}")
        if not axes[name]:
            raise UsageError(f"{option} {text}: the list is empty; give at least one value")
    return axes


def _parse_values(text: str, place: str) -> list[Any]:
    whole = _parse_toml(text)
    if isinstance(whole, list):
        return whole
    several = _parse_toml(f"[{text}]")
    if isinstance(several, list):
        return several
    words = [word.strip() for word in text.split(",")]
    if "" in words:
        raise UsageError(f"{place}: a value is missing before or after a comma")
    return [_parse_toml(word) for word in words]


def _parse_toml(text: str) -> Any:
    """A TOML value; text that is not TOML is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text
