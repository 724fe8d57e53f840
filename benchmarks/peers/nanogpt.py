"""A GPT-2 as nanoGPT builds and trains it (github.com/karpathy/nanoGPT: model.py, train.py), written anew.

nanoGPT is no package. What it fixes is kept: pre-norm LayerNorm without biases, one projection for queries, keys and
values, GELU, learned positions, a tied output projection, weights drawn with 0.02, residual projections scaled down by
sqrt(2 * layers), logits of all positions at once, decay on matrices only, and torch's plain AdamW on a CPU (it asks for
the fused one on CUDA alone).
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    """The shape of the model; the names are nanoGPT's."""

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int


class _SelfAttention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        queries, keys, values = (
            part.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).contiguous().view(batch, length, width))  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=False)
        self.attn = _SelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=False)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """GPT-2 without dropout."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(_Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                residual = name.endswith("c_proj.weight")
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.n_layer) if residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, T, vocab_size] for tokens int64 [B, T]."""
        return self.logits(self.hidden(tokens))

    def hidden(self, tokens: Tensor) -> Tensor:
        """The normalized residual stream [B, T, n_embd] for tokens int64 [B, T]."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)  # type: ignore[no-any-return] # nn.Module returns Any

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocab_size] for hidden [..., n_embd]."""
        return F.linear(hidden, self.wte.weight)


def build_optimizer(
    model: GPT, *, learning_rate: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.AdamW:
    """Build AdamW as nanoGPT does: decay on matrices and embeddings only."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)


def train_step(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
    *,
    context: AbstractContextManager[object] | None = None,
) -> Tensor:
    """One step as in nanoGPT's train.py; returns the loss before it, detached. `context` is its autocast."""
    with context or nullcontext():
        logits = model(inputs)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-1)
    loss.backward()  # type: ignore[no-untyped-call] # torch gives it no types
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()
