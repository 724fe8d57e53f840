"""The errors of the language model, each with a message for people."""

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
_SHORT.maxlevel = 3


def shown(value: object) -> str:
    """A value from a file as a message shows it: its repr, cut where it is long, deep or wide."""
    return _SHORT.repr(value)


class ModelConfigError(ValueError):
    """A model's architecture is inconsistent, or is one that this package cannot run exactly."""


class ModelFolderError(ValueError):
    """A model folder cannot be read or written; the message names the file and the fault."""


class SamplingError(ValueError):
    """Sampling parameters out of range, or logits from which no token can be drawn."""
