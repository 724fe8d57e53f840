"""Causal self-attention with grouped key and value heads."""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor, nn

from shared.lm.attention_operator import causal_attention
from shared.lm.config import ModelConfig
from shared.lm.kernel_calls import uses_kernels
from shared.lm.kv_cache import CacheWindow
from shared.lm.linear import Linear
from shared.lm.norm import RMSNorm
from shared.lm.rope import rotate


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245) with RoPE, optional query/key norm and biases.

    With `value_residual`, the values of layer n > 1 are a V_1 + b V_n, V_1 being those of the first layer and a and b
    learned factors that begin at 0.5 (Zhou et al. 2024, arXiv 2410.17897). The parameters carry Hugging Face's names.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.dropout = 0.0  # see Transformer.set_dropout
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        biases = config.attention_bias
        self.q_proj = Linear(config.d_model, queries, bias="q" in biases)
        self.k_proj = Linear(config.d_model, keys, bias="k" in biases)
        self.v_proj = Linear(config.d_model, keys, bias="v" in biases)
        self.o_proj = Linear(queries, config.d_model, bias="o" in biases)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        self.passes_values = config.value_residual
        self.value_factors = nn.Parameter(torch.empty(2)) if config.value_residual and layer else None

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor] | None,
        window: CacheWindow | None = None,
        mask: Tensor | None = None,
        first_values: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Map [B, T, d_model] to [B, T, d_model]; with a window, earlier tokens are read from its cache.

        Args:
            x: [B, T, d_model].
            rotation: From `RotaryEmbedding`; None for no position encoding.
            window: A view of the KV cache; has a mask of its own.
            mask: See `attend`.
            first_values: The first layer's values of these tokens, [B, num_kv_heads, T, head_dim]; for value residuals.

        Returns:
            The output, and the first layer's values for the layers after this one; None without value residuals.
        """
        queries, keys, values = (self._heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        if rotation is not None:
            queries, keys = rotate(queries, *rotation), rotate(keys, *rotation)
        if first_values is not None and self.value_factors is not None:
            values = self.value_factors[0] * first_values + self.value_factors[1] * values
        elif self.passes_values:
            first_values = values
        if window is not None:
            keys, values = window.update(self.layer, keys, values)
            mask = window.mask
        dropout = self.dropout if self.training and window is None else 0.0
        if window is None and mask is None and not dropout and uses_kernels(queries, keys, values):
            mixed = causal_attention(queries, keys, values)
        else:
            mixed = attend(queries, keys, values, mask, dropout).transpose(1, 2).flatten(2)
        return self.o_proj(mixed), first_values

    def _heads(self, x: Tensor) -> Tensor:
        """Split [B, T, heads * head_dim] into [B, heads, T, head_dim]."""
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, dropout: float = 0.0) -> Tensor:
    """Scaled dot-product attention: softmax(queries · keys / sqrt(head_dim)) · values.

    Args:
        queries: [B, num_heads, T, head_dim].
        keys: [B, num_kv_heads, S, head_dim]; consecutive query heads share one key head.
        values: As `keys`.
        mask: bool [B, 1, T, S], or None: causal if S equals T, unmasked if T is 1.
        dropout: Probability that an attention weight is set to 0; only for T above 1.

    Returns:
        [B, num_heads, T, head_dim].
    """
    batch, num_heads, num_tokens, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    if num_tokens == 1:
        # The heads of a group become rows of one product, so no key is copied: many times faster on a CPU.
        grouped = queries.reshape(batch, num_kv_heads, num_heads // num_kv_heads, head_dim)
        mixed = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
        return mixed.reshape(batch, num_heads, 1, head_dim)
    return F.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        dropout_p=dropout,
        enable_gqa=num_heads != num_kv_heads,
    )


def document_mask(tokens: Tensor, start: int) -> Tensor:
    """A causal mask within documents: a token attends to itself and to earlier tokens of its own document.

    Args:
        tokens: int64 [B, T], documents one after the other.
        start: The id that begins a document. The end-of-text id of one document begins the next, so that a document is
            scored as it is generated: after that id alone.

    Returns:
        bool [B, 1, T, T], for `attend`.
    """
    documents = (tokens == start).cumsum(1)
    same = documents.unsqueeze(2) == documents.unsqueeze(1)
    return (same & torch.ones_like(same[0]).tril()).unsqueeze(1)
