"""The exceptions of the language model."""


class ModelConfigError(ValueError):
    """A model's architecture is inconsistent, or is one that this package cannot run exactly."""


class ModelFolderError(ValueError):
    """A model folder cannot be read or written; the message names the file and the fault."""


class SamplingError(ValueError):
    """Sampling parameters out of range, or logits from which no token can be sampled."""
