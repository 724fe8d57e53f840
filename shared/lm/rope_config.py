"""What a config says of rotary position embeddings. No torch."""

import math
from dataclasses import dataclass

from shared.lm.errors import ModelConfigError


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's stretching of the slow frequencies, so that a model reaches further than it was first trained.

    Attributes:
        factor: How many times longer the slow wavelengths become.
        low_freq_factor: Wavelengths above `original_context_length / low_freq_factor` are stretched in full.
        high_freq_factor: Wavelengths below `original_context_length / high_freq_factor` stay as they are.
        original_context_length: The context length of the first training, in tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_length: int

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise ModelConfigError(f"the RoPE scaling factor must be at least 1, got {self.factor}")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ModelConfigError(
                "RoPE scaling needs 0 < low_freq_factor < high_freq_factor, "
                f"got {self.low_freq_factor} and {self.high_freq_factor}"
            )
        if self.original_context_length < 1:
            raise ModelConfigError(
                f"RoPE scaling needs an original context length of at least 1, got {self.original_context_length}"
            )


@dataclass(frozen=True)
class RopeConfig:
    """How positions turn into rotations: the base `theta` and, where given, Llama 3's scaling."""

    theta: float = 10_000.0
    scaling: Llama3Scaling | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.theta) and self.theta > 0):
            raise ModelConfigError(f"rope theta must be a positive number, got {self.theta}")
