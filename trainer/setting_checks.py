"""The check that most settings need."""

import math

from trainer.errors import UsageError


def require(settings: object, minimum: float, *names: str, maximum: float = math.inf) -> None:
    """Raise UsageError where a field that is set is not a finite number within the limits."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not (minimum <= value <= maximum and math.isfinite(value)):
            limits = f"at least {minimum}" if maximum == math.inf else f"from {minimum} to {maximum}"
            raise UsageError(f"{name} must be {limits}; got {value}")
