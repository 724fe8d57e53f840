"""Mimetic initialization: attention starts with the pattern it would learn, for runs too short to learn it."""

import torch
from torch import nn

from shared.lm import Transformer
from shared.lm.attention import Attention

_SHARPNESS = 1.4  # gain of the query and key norms: at 1, a head's attention starts nearly flat


@torch.no_grad()
def mimetic_attention_(model: Transformer) -> None:
    """Initialize every head with the pattern of trained models: attend to similar tokens and copy them.

    Keys start as copies of the queries' weights, so that a token attends to tokens like itself, and the output
    projection as the transpose of the value projection, so that what is attended to is added to the residual stream as
    it is. The demo model then learns to repeat a story's names within a million tokens; from plain random weights it
    had not begun to after one and a half (docs/lab/log.md).

    Source: Trockman and Kolter 2023, "Mimetic Initialization of Self-Attention Layers" (arXiv 2305.09828). Theirs draws
    the products of the weights near a multiple of the identity; ours makes them so outright.

    Args:
        model: Changed in place; the random values come from torch's global generator.
    """
    config = model.config
    group = config.num_heads // config.num_kv_heads
    for attention in (module for module in model.modules() if isinstance(module, Attention)):
        queries = attention.q_proj.weight.view(config.num_kv_heads, group, config.head_dim, config.d_model)
        attention.k_proj.weight.copy_(queries[:, 0].flatten(0, 1))
        nn.init.orthogonal_(attention.v_proj.weight)
        values = attention.v_proj.weight.view(config.num_kv_heads, 1, config.head_dim, config.d_model)
        # The heads of a group share their values: each passes on its share.
        shared = values.expand(-1, group, -1, -1).reshape(config.num_heads * config.head_dim, config.d_model) / group
        attention.o_proj.weight.copy_(shared.T)
        for norm in (attention.q_norm, attention.k_norm):
            if norm is not None:
                norm.weight.fill_(_SHARPNESS)
