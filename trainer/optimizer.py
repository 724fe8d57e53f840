"""AdamW with weight decay on matrices only."""

import torch
from torch import nn


def build_optimizer(
    model: nn.Module, *, learning_rate: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.AdamW:
    """AdamW over every parameter of the model once (a tied one too).

    Matrices and embeddings (two dimensions or more) decay; norm gains and biases do not, as in GPT-2's and nanoGPT's
    training: pulling a gain to zero only fights the normalisation.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    # One kernel for the whole update; torch has it for CPU, CUDA and MPS.
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every parameter group this rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
