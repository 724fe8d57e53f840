"""Type checks for values read from JSON or TOML files, which may have been edited or damaged."""

from collections.abc import Mapping
from typing import Any

LARGEST = 1e100
"""The largest number that is used in arithmetic: sums of many such numbers fit into a float64."""

_SETTING = (None, bool, int, float, str, [(bool, int, float, str)])


def has_type(value: object, expected: object) -> bool:
    """Whether a value has an expected type.

    Args:
        value: From a file.
        expected: `bool`, `str` or `dict`; `int` of 64 bits; `float` for a finite number up to `LARGEST`; None for null;
            a tuple for a union of types; a list with one type for a list of it; a dict of types for a dict with these
            keys, where a missing key counts as null.
    """
    if isinstance(expected, tuple):
        return any(has_type(value, one) for one in expected)
    if isinstance(expected, list):
        return isinstance(value, list) and all(has_type(item, expected[0]) for item in value)
    if isinstance(expected, dict):
        return isinstance(value, dict) and all(has_type(value.get(key), one) for key, one in expected.items())
    if expected is int:
        return type(value) is int and abs(value) < 1 << 63
    if expected is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
    return value is None if expected is None else isinstance(value, expected)  # type: ignore[arg-type]


def valid_settings(table: Mapping[str, Any], source: str, notes: list[str]) -> dict[str, Any]:
    """The entries of a table whose values a setting can have; adds a note for each of the others."""
    invalid = [name for name, value in table.items() if not has_type(value, _SETTING)]
    notes += [f"{source}: {name} has a value that no setting can have" for name in invalid]
    return {name: value for name, value in table.items() if name not in invalid}
