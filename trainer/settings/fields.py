"""What every settings class has: limits of its fields, and what each field affects."""

import dataclasses
import math
from dataclasses import field
from typing import Any, ClassVar, Literal, TypeVar

from trainer.errors import UsageError

Affects = Literal["result", "watching", "machine"]
"""What a setting of a run changes.

- result: the trained weights; it must stay the same when a run is resumed.
- watching: what is logged, evaluated, sampled, saved and guarded against; a fault-free run ends with the same weights.
- machine: where it is computed; at most the last bits of the result differ.
"""

MAX_THREADS = 1024
"""Of one process; torch aborts without a message where the system cannot start as many threads as requested."""

_MAX_INT = 2**63 - 1  # what files and torch's seeds hold
_AFFECTS = "affects"
_LIMITS = "limits"

T = TypeVar("T")


def setting(
    default: T, *, minimum: float | None = None, maximum: float = math.inf, affects: Affects | None = None
) -> T:
    """A field of a settings class.

    Args:
        default: Its default value.
        minimum: The lowest value allowed, of a number.
        maximum: The highest one.
        affects: What it changes, where that is not what the other fields of its class change.
    """
    metadata: dict[str, Any] = {} if affects is None else {_AFFECTS: affects}
    if minimum is not None:
        metadata[_LIMITS] = (minimum, maximum)
    return field(default=default, metadata=metadata)  # dataclasses replace it by its default


def option(name: str) -> str:
    """The option of the command line that sets a field, by which all errors name it."""
    return f"--{name.replace('_', '-')}"


class Settings:
    """Base of the settings dataclasses.

    Raises UsageError on construction where a number is outside its field's limits, not finite, or beyond 64 bits.
    """

    _affects: ClassVar[Affects] = "result"

    def __init_subclass__(cls, *, affects: Affects | None = None) -> None:
        """Declare a settings class.

        Args:
            affects: What its fields change, unless a field declares otherwise. Default: as in the base class.
        """
        super().__init_subclass__()
        if affects is not None:
            cls._affects = affects

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value = getattr(self, item.name)
            if _LIMITS in item.metadata and value is not None:
                _check(item.name, value, *item.metadata[_LIMITS])


def _check(name: str, value: float, minimum: float, maximum: float) -> None:
    if not (minimum <= value <= maximum and math.isfinite(value)):
        least = "a finite number of at least" if isinstance(value, float) else "at least"
        limits = f"{least} {minimum}" if maximum == math.inf else f"from {minimum} to {maximum}"
        raise UsageError(f"{option(name)} must be {limits}; got {value}")
    if isinstance(value, int) and value > _MAX_INT:
        raise UsageError(f"{option(name)} must be at most {_MAX_INT}; got {value}")


def changed_names(settings: Settings) -> list[str]:
    """The names of the fields that do not have their default values."""
    items = dataclasses.fields(settings)  # type: ignore[arg-type]  # subclasses are dataclasses
    return [item.name for item in items if getattr(settings, item.name) != item.default]


def names_affecting(settings_class: type[Settings], affects: Affects) -> frozenset[str]:
    """The names of all settings, nested groups included, that affect the result, watching or the machine."""
    names: set[str] = set()
    for item in dataclasses.fields(settings_class):  # type: ignore[arg-type]  # as above
        if isinstance(item.type, type) and issubclass(item.type, Settings):
            names |= names_affecting(item.type, affects)
        elif item.metadata.get(_AFFECTS, settings_class._affects) == affects:
            names.add(item.name)
    return frozenset(names)
