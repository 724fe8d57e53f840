"""The forward pass of a Llama-shaped model in NumPy and float64: what imports are compared with.

It is written from the definitions of the formats, not from `shared.lm`, and reads weights as a format lays them out.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

_ROWS = 4_096  # of a matrix that are in memory in float64 at a time


class Weights(Protocol):
    """The weights of a format by the name of the part, such as "query"; None for one that the model lacks."""

    def __call__(self, part: str, layer: int | None = None) -> Tensor | None:
        """Return a weight in the format's own layout."""


@dataclass(frozen=True)
class Reference:
    """How a format's own code defines its model.

    Attributes:
        weights: Parts: embedding, output (absent if it is the embedding) and norm; of each layer attention_norm, query,
            key, value, attention_output (each also with `_bias`), query_norm, key_norm, feed_forward_norm, gate, up,
            down.
        num_layers: Number of layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        norm_eps: Added to the mean square.
        frequencies: Radians per position of each pair of channels, [head_dim / 2].
        neighbors: Whether a pair of channels is 2k and 2k + 1; otherwise it is k and k + head_dim / 2.
    """

    weights: Weights
    num_layers: int
    num_heads: int
    num_kv_heads: int
    norm_eps: float
    frequencies: Array
    neighbors: bool

    def logits(self, ids: NDArray[np.int64]) -> Array:
        """The logits of each position, [tokens, vocab_size], of ids [tokens]."""
        x = _array(_needed(self.weights("embedding"))[ids])
        for layer in range(self.num_layers):
            x = x + self._attention(layer, self._norm(x, "attention_norm", layer))
            x = x + self._feed_forward(layer, self._norm(x, "feed_forward_norm", layer))
        output = self.weights("output")
        x = rms_norm(x, self.norm_eps) * _array(_needed(self.weights("norm")))
        return product(x, _needed(self.weights("embedding")) if output is None else output)

    def _norm(self, x: Array, part: str, layer: int) -> Array:
        gain = self.weights(part, layer)
        normed = rms_norm(x, self.norm_eps)
        return normed if gain is None else normed * _array(gain)

    def _project(self, x: Array, part: str, layer: int) -> Array:
        bias = self.weights(f"{part}_bias", layer)
        projected = product(x, _needed(self.weights(part, layer)))
        return projected if bias is None else projected + _array(bias)

    def _attention(self, layer: int, x: Array) -> Array:
        tokens, groups = len(x), self.num_heads // self.num_kv_heads
        queries, keys = (
            rotated(self._heads_norm(heads(self._project(x, part, layer), number), part, layer), self.frequencies,
                    neighbors=self.neighbors)
            for part, number in (("query", self.num_heads), ("key", self.num_kv_heads))
        )  # fmt: skip
        values = heads(self._project(x, "value", layer), self.num_kv_heads)
        mixed = attended(queries, keys.repeat(groups, 0), values.repeat(groups, 0))
        return self._project(mixed.swapaxes(0, 1).reshape(tokens, -1), "attention_output", layer)

    def _heads_norm(self, x: Array, part: str, layer: int) -> Array:
        gain = self.weights(f"{part}_norm", layer)
        return x if gain is None else rms_norm(x, self.norm_eps) * _array(gain)

    def _feed_forward(self, layer: int, x: Array) -> Array:
        gate = self._project(x, "gate", layer)
        return self._project(gate / (1 + np.exp(-gate)) * self._project(x, "up", layer), "down", layer)


def plain_frequencies(theta: float, head_dim: int) -> Array:
    """Radians per position of each pair of channels, without scaling: theta^(-2k / head_dim)."""
    return np.array([theta ** (-2 * k / head_dim) for k in range(head_dim // 2)])


def llama3_frequencies(frequencies: Array, factor: float, low: float, high: float, original: float) -> Array:
    """Llama 3.1's scaling, wave by wave: long ones are stretched, short ones kept, those between mixed."""
    scaled = []
    for frequency in frequencies.tolist():
        turns = original * frequency / (2 * np.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        scaled.append((1 - kept) * frequency / factor + kept * frequency)
    return np.array(scaled)


def rms_norm(x: Array, eps: float) -> Array:
    """Divide by the root of the mean square."""
    normed: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return normed


def heads(x: Array, number: int) -> Array:
    """Split [tokens, heads * channels] into [heads, tokens, channels]."""
    return x.reshape(len(x), number, -1).swapaxes(0, 1)


def rotated(x: Array, frequencies: Array, *, neighbors: bool) -> Array:
    """Rotate the pairs of channels of [heads, tokens, channels] by position times frequency."""
    angles = np.outer(np.arange(x.shape[1]), frequencies)
    half = x.shape[-1] // 2
    first, second = (x[..., ::2], x[..., 1::2]) if neighbors else (x[..., :half], x[..., half:])
    turned = (first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles))
    return np.stack(turned, axis=-1).reshape(x.shape) if neighbors else np.concatenate(turned, axis=-1)


def attended(queries: Array, keys: Array, values: Array) -> Array:
    """Causal attention of [heads, tokens, channels]."""
    scores = queries @ keys.swapaxes(1, 2) / np.sqrt(queries.shape[-1])
    scores = np.where(np.tri(queries.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed: Array = weights / weights.sum(-1, keepdims=True) @ values
    return mixed


def product(x: Array, weight: Tensor) -> Array:
    """`x` times the transposed matrix, of which some rows at a time are converted."""
    return np.concatenate([x @ _array(weight[at : at + _ROWS]).T for at in range(0, len(weight), _ROWS)], axis=-1)


def _array(weight: Tensor) -> Array:
    numbers: NDArray[Any] = weight.double().numpy()
    return numbers


def _needed(weight: Tensor | None) -> Tensor:
    assert weight is not None, "the names were checked when the model was read"
    return weight
