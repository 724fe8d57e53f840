"""Whether what was read from JSON or TOML is of the kind that was written there: files are edited, and get damaged."""

from collections.abc import Mapping
from typing import Any

LARGEST = 1e100
"""Of a number that is computed with: sums of many fit into a float64."""

_SETTING = (None, bool, int, float, str, [(bool, int, float, str)])


def fits(value: object, kind: object) -> bool:
    """Whether a value is of a kind.

    Args:
        value: From a file.
        kind: `bool`, `str` or `dict`; `int` of 64 bits; `float` for a finite number up to `LARGEST`; None for null; a
            tuple for any of several kinds; a list of one kind for a list; a dict of kinds for one with these keys,
            where a key that is missing counts as null.
    """
    if isinstance(kind, tuple):
        return any(fits(value, one) for one in kind)
    if isinstance(kind, list):
        return isinstance(value, list) and all(fits(item, kind[0]) for item in value)
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(fits(value.get(key), one) for key, one in kind.items())
    if kind is int:
        return type(value) is int and abs(value) < 1 << 63
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
    return value is None if kind is None else isinstance(value, kind)  # type: ignore[arg-type]


def sound_settings(table: Mapping[str, Any], source: str, notes: list[str]) -> dict[str, Any]:
    """The values of a table that settings can have; notes of the others are added."""
    odd = [name for name, value in table.items() if not fits(value, _SETTING)]
    notes += [f"{source}: {name} has a value that no setting can have" for name in odd]
    return {name: value for name, value in table.items() if name not in odd}
