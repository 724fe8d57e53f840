"""What a step is made of: the interface of its operations, which kernels and plain torch have in common.

Both are *invariant*: what a token gets is computed by the same sums in the same order with any content of other rows
and however many rows there are. So a token is the same to the last bit in a part of a prompt of any size, generated
beside any others, and computed again after preemption or taken from the prefix cache. torch's own products are not:
cuBLAS and MKL choose the order of a sum by the number of rows (He et al. 2025, "Defeating Nondeterminism in LLM
Inference", Thinking Machines Lab).
"""

from typing import NamedTuple, Protocol

from torch import Tensor

ROWS = 32
"""Rows that a product computes at once, always: fewer are padded."""

QUERY_ROWS = 16
"""Queries that attention computes at once: consecutive tokens times heads that share keys; see `group_size`."""


class Rotation(NamedTuple):
    """Cosines and sines of RoPE for all positions, float32 [max_length, head_dim / 2] each."""

    cos: Tensor
    sin: Tensor


class HeadNorms(NamedTuple):
    """The norms of queries and keys: gains [head_dim], None for none; and what is added to the mean square."""

    queries: Tensor | None
    keys: Tensor | None
    eps: float


class LayerCache(NamedTuple):
    """Keys and values of a layer, [num_blocks * BLOCK_SIZE, num_kv_heads, head_dim] each."""

    keys: Tensor
    values: Tensor


class Layout(NamedTuple):
    """Where the tokens of a tile are, all int32 on the device. Consecutive tokens of one sequence form a *group*.

    Attributes:
        positions: [T] in their sequences.
        cache_indices: [T] where in the cache their keys and values are written.
        tables: [max_blocks, num_groups]: the blocks of each group's sequence. T is a multiple of num_groups.
    """

    positions: Tensor
    cache_indices: Tensor
    tables: Tensor


class Operations(Protocol):
    """The operations of a step, each one or two launches on a GPU. Activations are in the dtype of the weights."""

    def norm(self, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        """RMSNorm of x [T, d_model]."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        """Return x [T, in] @ weightᵀ [in, out] + bias [out] + residual [T, out]."""

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x [T, in] @ weightᵀ [in, out] in float32, not rounded to the dtype of the weights."""

    def swiglu(self, x: Tensor, gate_up: Tensor) -> Tensor:
        """silu(x @ gateᵀ) * (x @ upᵀ): [T, d_ff] of x [T, in] and gate_up [2 * d_ff, in]."""

    def rotate_and_write(
        self, qkv: Tensor, cache: LayerCache, layout: Layout, rotation: Rotation, norms: HeadNorms
    ) -> Tensor:
        """Norm and rotate queries and keys of qkv [T, any], and write keys and values to a layer of the cache.

        Returns:
            The queries, [T, num_heads, head_dim].
        """

    def attend(self, queries: Tensor, cache: LayerCache, layout: Layout) -> Tensor:
        """Attend with queries [T, num_heads, head_dim] to a layer of the cache, up to each token's own position.

        Scores, softmax and sums are in float32. NaN in blocks beyond a token's position does not reach it.

        Returns:
            [T, num_heads * head_dim].
        """


def group_size(num_heads: int, num_kv_heads: int) -> int:
    """Tokens of a group in a prompt: as many as fit into `QUERY_ROWS` with all heads that share keys."""
    return max(1, QUERY_ROWS // padded(num_heads // num_kv_heads))


def padded(number: int) -> int:
    """The least power of two that is not below."""
    return 1 << (number - 1).bit_length()
