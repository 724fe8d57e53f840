"""The check that most settings need."""

import math

from trainer.errors import UsageError

MOST_THREADS = 1024
"""Of one process; torch dies without a word where the system has no room for as many as it was asked for."""

_LARGEST = 2**63 - 1  # what files and torch's seeds hold


def require(settings: object, minimum: float, *names: str, maximum: float = math.inf) -> None:
    """Raise UsageError where a field that is set is not a finite number within the limits."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not (minimum <= value <= maximum and math.isfinite(value)):
            least = "a finite number of at least" if isinstance(value, float) else "at least"
            limits = f"{least} {minimum}" if maximum == math.inf else f"from {minimum} to {maximum}"
            raise UsageError(f"{name} must be {limits}; got {value}")
        if isinstance(value, int) and value > _LARGEST:
            raise UsageError(f"{name} must be at most {_LARGEST}; got {value}")
