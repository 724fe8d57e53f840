"""Initial weights other than the model's own: by the size of each matrix, attention that copies, outputs of zero."""

import torch
from torch import nn

from shared.lm import Transformer
from shared.lm.attention import Attention
from shared.lm.transformer import FeedForward

_SHARPNESS = 1.4  # gain of the query and key norms: at 1, a head's attention starts nearly flat


@torch.no_grad()
def xavier_(model: Transformer) -> None:
    """Initialize every matrix by its own size, and the embedding with a standard deviation of 1.

    The variance of a matrix is 2 / (rows + columns); values beyond three standard deviations are drawn again.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks", with
    the bounds and the embedding of CS336 (assignment 1, section 3.4.1).

    Args:
        model: Changed in place; the random values come from torch's global generator.
    """
    for parameter in model.parameters():
        if parameter.ndim == 2:
            is_embedding = parameter is model.model.embed_tokens.weight
            std = 1.0 if is_embedding else (2 / sum(parameter.shape)) ** 0.5
            nn.init.trunc_normal_(parameter, std=std, a=-3 * std, b=3 * std)


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


@torch.no_grad()
def zero_blocks_(model: Transformer) -> None:
    """Set the projections that blocks add to the residual stream to zero, so that each block starts as the identity.

    Source: Zhang, Dauphin and Ma 2019, "Fixup Initialization" (arXiv 1901.09321, section 3, rule 1). Its other rules,
    which replace normalization, are not applied.
    """
    for module in model.modules():
        if isinstance(module, Attention):
            module.o_proj.weight.zero_()
        elif isinstance(module, FeedForward):
            module.down_proj.weight.zero_()


@torch.no_grad()
def zero_head_(model: Transformer) -> None:
    """Set the output projection to zero, so that all tokens start equally likely.

    Source: Yang et al. 2022, "Tensor Programs V" (arXiv 2203.03466, appendix D.2).

    Raises:
        ValueError: the projection is the embedding too.
    """
    if model.lm_head is None:
        raise ValueError("a tied output projection is the embedding, which must not be zero")
    model.lm_head.weight.zero_()
