"""Rotary position embeddings (RoPE), in the half-split layout of Hugging Face's Llama."""

import torch
from torch import Tensor, nn

from shared.lm.kernel_calls import uses_kernels
from shared.lm.operators import rotate_heads
from shared.lm.rope_config import RopeConfig, rope_frequencies


class RotaryEmbedding(nn.Module):
    """Computes the cosines and sines for `rotate` from positions, times the magnitude of YaRN."""

    frequencies: Tensor

    def __init__(self, rope: RopeConfig, head_dim: int) -> None:
        super().__init__()
        self._rope = rope
        self._head_dim = head_dim
        self.register_buffer("frequencies", torch.from_numpy(rope_frequencies(rope, head_dim)), persistent=False)

    def _apply(self, *args: object, **kwargs: object) -> "RotaryEmbedding":
        # A model cast to bfloat16 keeps its frequencies in float32: rounded ones would be wrong at distant positions.
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.frequencies = torch.from_numpy(rope_frequencies(self._rope, self._head_dim)).to(self.frequencies.device)
        return self

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Map positions [B, T] (or [T]) to cosines and sines, [B, 1, T, head_dim / 2] each (or [T, head_dim / 2])."""
        angles = positions.unsqueeze(-1).float() * self.frequencies
        if positions.ndim == 2:
            angles = angles.unsqueeze(1)
        return angles.cos() * self._rope.magnitude, angles.sin() * self._rope.magnitude


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate channel i with channel i + head_dim / 2 of `x` [B, heads, T, head_dim]; the result has x's dtype."""
    if cos.ndim == 2 and uses_kernels(x):
        return rotate_heads(x, cos, sin)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
