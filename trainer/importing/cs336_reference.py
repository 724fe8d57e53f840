"""The forward pass of CS336's assignment 1, as its handout defines it, in NumPy: what an import is compared with."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def reference_logits(
    state: Mapping[str, Array], ids: NDArray[Any], *, num_heads: int, rope_theta: float, norm_eps: float
) -> Array:
    """Return the logits of each position, [tokens, vocab_size].

    Args:
        state: The assignment's state dict.
        ids: [tokens].
        num_heads: Heads of each layer.
        rope_theta: Base of the rotary embedding.
        norm_eps: Added to the mean square.
    """
    embedding = state["token_embeddings.weight"]
    x = embedding[ids]
    layer = 0
    while f"layers.{layer}.ln1.weight" in state:
        own = {name.split(".", 2)[2]: weight for name, weight in state.items() if name.startswith(f"layers.{layer}.")}
        x = x + _attention(own, _rms_norm(x, own["ln1.weight"], norm_eps), num_heads, rope_theta)
        x = x + _feed_forward(own, _rms_norm(x, own["ln2.weight"], norm_eps))
        layer += 1
    x = _rms_norm(x, state["ln_final.weight"], norm_eps)
    logits: Array = x @ state.get("lm_head.weight", embedding).T
    return logits


def _rms_norm(x: Array, gain: Array, eps: float) -> Array:
    normed: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain
    return normed


def _attention(own: Mapping[str, Array], x: Array, num_heads: int, theta: float) -> Array:
    tokens, width = x.shape
    queries, keys, values = (
        (x @ own[f"attn.{name}_proj.weight"].T).reshape(tokens, num_heads, -1).swapaxes(0, 1) for name in "qkv"
    )
    scores = _rotated(queries, theta) @ _rotated(keys, theta).swapaxes(1, 2) / np.sqrt(width // num_heads)
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    attended: Array = (weights @ values).swapaxes(0, 1).reshape(tokens, width) @ own["attn.output_proj.weight"].T
    return attended


def _rotated(x: Array, theta: float) -> Array:
    """Rotate channels 2k and 2k + 1 of each head by position / theta^(2k / head_dim)."""
    _, tokens, size = x.shape
    angles = np.outer(np.arange(tokens), theta ** -(np.arange(0, size, 2) / size))
    even, odd = x[..., ::2], x[..., 1::2]
    turned = (even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles))
    return np.stack(turned, axis=-1).reshape(x.shape)


def _feed_forward(own: Mapping[str, Array], x: Array) -> Array:
    gate = x @ own["ffn.w1.weight"].T
    out: Array = (gate / (1 + np.exp(-gate)) * (x @ own["ffn.w3.weight"].T)) @ own["ffn.w2.weight"].T
    return out
