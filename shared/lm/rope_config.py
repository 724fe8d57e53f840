"""What a config says of rotary position embeddings, and the frequencies that follow from it. No torch."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


def rope_frequencies(rope: RopeConfig, head_dim: int) -> NDArray[np.float32]:
    """Return the radians per position of each pair of channels, [head_dim / 2].

    Sources: Su et al. 2021, "RoFormer" (arXiv 2104.09864); the scaling is the `apply_scaling` of Meta's llama-models.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    # The power is rounded once: NumPy's in float32 is off by more, and by something else on each processor.
    powers = np.power(rope.theta, exponents, dtype=np.float64).astype(np.float32)
    frequencies: NDArray[np.float32] = np.float32(1) / powers
    if rope.scaling is None:
        return frequencies
    scaling = rope.scaling
    turns = scaling.original_context_length * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clip(0.0, 1.0)
    stretched: NDArray[np.float32] = kept * frequencies + (1 - kept) * frequencies / scaling.factor
    return stretched
