"""The settings of rotary position embeddings, and the frequencies computed from them. No torch."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.lm.errors import ModelConfigError

Frequencies = NDArray[np.float32]

# Far beyond any model, but all results computed from these fit into float32.
_LARGEST_THETA = 1e30
_LEAST_FACTOR, _LARGEST_FACTOR = 1e-6, 1e6
_LONGEST_CONTEXT = 1 << 24


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by `factor`: position interpolation (Chen et al. 2023, arXiv 2306.15595)."""

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def stretch(self, frequencies: Frequencies, _theta: float) -> Frequencies:
        """Return the scaled frequencies."""
        return frequencies / np.float32(self.factor)


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's scaling of the low frequencies, for a longer context than in the original training.

    Source: the `apply_scaling` of Meta's llama-models.

    Attributes:
        factor: Factor by which long wavelengths are stretched.
        low_freq_factor: Wavelengths above `original_context_length / low_freq_factor` are stretched in full.
        high_freq_factor: Wavelengths below `original_context_length / high_freq_factor` are unchanged.
        original_context_length: The context length of the original training, in tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_length: int

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        _check_range("low_freq_factor", self.low_freq_factor)
        _check_range("high_freq_factor", self.high_freq_factor)
        if not self.low_freq_factor < self.high_freq_factor:
            raise ModelConfigError(
                "RoPE scaling needs 0 < low_freq_factor < high_freq_factor, "
                f"got {self.low_freq_factor} and {self.high_freq_factor}"
            )
        _check_original(self.original_context_length)

    def stretch(self, frequencies: Frequencies, _theta: float) -> Frequencies:
        """Return the scaled frequencies."""
        turns = self.original_context_length * frequencies / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clip(0.0, 1.0)
        stretched: Frequencies = kept * frequencies + (1 - kept) * frequencies / self.factor
        return stretched


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, arXiv 2309.00071): low frequencies are divided, high ones kept, and scores scaled up.

    Attributes:
        factor: Factor by which long wavelengths are stretched.
        original_context_length: The context length of the original training, in tokens.
        attention_factor: Factor of queries and keys; None for the paper's 0.1 ln(factor) + 1.
        beta_fast: Channels that turn this often or more within the original context are unchanged.
        beta_slow: Those that turn this often or less are stretched in full.
        truncate: Whether the bounds between the two are rounded outward to whole channels.
    """

    factor: float
    original_context_length: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        _check_original(self.original_context_length)
        for name in ("attention_factor", "beta_fast", "beta_slow"):
            if (value := getattr(self, name)) is not None:
                _check_range(name, value)
        if self.beta_fast < self.beta_slow:
            raise ModelConfigError(
                f"RoPE scaling needs beta_fast of at least beta_slow, got {self.beta_fast} and {self.beta_slow}"
            )

    @property
    def magnitude(self) -> float:
        """Factor of queries and keys."""
        return 0.1 * math.log(self.factor) + 1.0 if self.attention_factor is None else self.attention_factor

    def stretch(self, frequencies: Frequencies, theta: float) -> Frequencies:
        """Return the scaled frequencies."""
        pairs = len(frequencies)
        low, high = self._pair(self.beta_fast, pairs, theta), self._pair(self.beta_slow, pairs, theta)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        # The bounds of the reference implementation, which counts channels here, not pairs.
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        width = (high - low) or 0.001
        stretched = ((np.arange(pairs, dtype=np.float32) - low) / width).clip(0.0, 1.0)
        mixed: Frequencies = frequencies / np.float32(self.factor) * stretched + frequencies * (1 - stretched)
        return mixed

    def _pair(self, turns: float, pairs: int, theta: float) -> float:
        """The pair of channels, as a real number, that turns this often within the original context."""
        return pairs * math.log(self.original_context_length / (turns * 2 * math.pi)) / math.log(theta)


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True)
class RopeConfig:
    """How positions turn into rotations: the base `theta` and, where given, a scaling for longer contexts."""

    theta: float = 10_000.0
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.theta <= _LARGEST_THETA:
            raise ModelConfigError(f"rope theta must be a number from 1 to {_LARGEST_THETA:g}, got {self.theta}")
        if self.theta == 1 and isinstance(self.scaling, YarnScaling):
            raise ModelConfigError("RoPE scaling by YaRN needs a theta above 1")

    @property
    def magnitude(self) -> float:
        """Factor of rotated queries and keys: 1, except for YaRN."""
        return self.scaling.magnitude if isinstance(self.scaling, YarnScaling) else 1.0


def rope_frequencies(rope: RopeConfig, head_dim: int) -> Frequencies:
    """Return the radians per position of each pair of channels, [head_dim / 2].

    Source: Su et al. 2021, "RoFormer" (arXiv 2104.09864).
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    # In float64, so that it is rounded once: NumPy's float32 power is less exact and differs between processors.
    powers = np.power(rope.theta, exponents, dtype=np.float64).astype(np.float32)
    frequencies: Frequencies = np.float32(1) / powers
    return frequencies if rope.scaling is None else rope.scaling.stretch(frequencies, rope.theta)


def _check_factor(factor: float) -> None:
    if not 1 <= factor <= _LARGEST_FACTOR:
        raise ModelConfigError(f"the RoPE scaling factor must be a number from 1 to {_LARGEST_FACTOR:g}, got {factor}")


def _check_range(name: str, value: float) -> None:
    if not _LEAST_FACTOR <= value <= _LARGEST_FACTOR:
        raise ModelConfigError(
            f"{name} of RoPE scaling must be a number from {_LEAST_FACTOR:g} to {_LARGEST_FACTOR:g}, got {value}"
        )


def _check_original(length: int) -> None:
    if not 1 <= length <= _LONGEST_CONTEXT:
        raise ModelConfigError(
            f"the original context length of RoPE scaling must be from 1 to {_LONGEST_CONTEXT}, got {length}"
        )
