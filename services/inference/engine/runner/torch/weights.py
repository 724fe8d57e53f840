"""The weights of a model as the runner multiplies with them: query, key and value in one, gate and up in one."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shared.lm import Transformer
from shared.lm.attention import Attention
from shared.lm.norm import RMSNorm
from shared.lm.transformer import Block


@dataclass(frozen=True)
class LayerWeights:
    """The weights of a layer.

    Attributes:
        input_norm: Gain before attention, [d_model].
        qkv: [(num_heads + 2 * num_kv_heads) * head_dim, d_model].
        qkv_bias: Of as many; None for none.
        q_norm, k_norm: Gains of the norms on queries and keys, [head_dim]; None for none.
        out, out_bias: The output projection of attention.
        mlp_norm: Gain before the feed-forward layer, [d_model].
        gate_up: [2 * d_ff, d_model], all rows of the gate first.
        down: [d_model, d_ff].
    """

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


def merged_weights(model: Transformer) -> list[LayerWeights]:
    """Merge the projections of each layer. The model's own become views of the merged ones, so that none is kept twice.

    Raises:
        ValueError: The model is not one that the service opens: pre-norm, SwiGLU.
    """
    return [_merge_layer(block) for block in model.model.layers if isinstance(block, Block)]


def _merge_layer(block: Block) -> LayerWeights:
    attention, mlp = block.self_attn, block.mlp
    before, between = block.input_layernorm, block.post_attention_layernorm
    if mlp.gate_proj is None or not isinstance(before, RMSNorm) or not isinstance(between, RMSNorm):
        raise ValueError("only a model with pre-norm and SwiGLU can be served")
    return LayerWeights(
        input_norm=before.weight,
        qkv=_merged([attention.q_proj, attention.k_proj, attention.v_proj]),
        qkv_bias=_merged_bias(attention),
        q_norm=None if attention.q_norm is None else attention.q_norm.weight,
        k_norm=None if attention.k_norm is None else attention.k_norm.weight,
        out=attention.o_proj.weight,
        out_bias=attention.o_proj.bias,
        mlp_norm=between.weight,
        gate_up=_merged([mlp.gate_proj, mlp.up_proj]),
        down=mlp.down_proj.weight,
    )


def _merged(projections: list[nn.Linear]) -> Tensor:
    weights = [projection.weight for projection in projections]
    merged = torch.cat([weight.data for weight in weights])
    for weight, part in zip(weights, torch.split(merged, [len(weight) for weight in weights]), strict=True):
        weight.data = part
    return merged


def _merged_bias(attention: Attention) -> Tensor | None:
    """The three biases, which a model has all or none of."""
    biases = [projection.bias for projection in (attention.q_proj, attention.k_proj, attention.v_proj)]
    return None if biases[0] is None else torch.cat([bias.data for bias in biases])
