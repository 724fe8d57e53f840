"""AdamW, Muon with AdamW, and SGD; weight decay on matrices only."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shared.lm.weight_shapes import EMBEDDING, OUTPUT
from trainer.errors import UsageError

_RELATIVE_RATE = "relative_rate"
"""Key of a group with a learning rate of its own: that rate over the one of the others."""


def build_optimizer(
    model: nn.Module,
    *,
    learning_rate: float,
    betas: tuple[float, float],
    weight_decay: float,
    momentum: float = 0.0,
    name: Literal["adamw", "muon", "sgd"] = "adamw",
    embedding_learning_rate: float | None = None,
    head_learning_rate: float | None = None,
) -> torch.optim.Optimizer:
    """An optimizer over every parameter of the model once (a tied one too).

    Matrices and embeddings (two dimensions or more) decay; norm gains and biases do not (nanoGPT's
    `configure_optimizers`): pulling a gain to zero only works against the normalization.

    Args:
        model: A Transformer, or a module around one.
        learning_rate: For all parameters, see `set_learning_rate`.
        betas: AdamW's.
        weight_decay: Decoupled, as Loshchilov and Hutter 2019 (arXiv 1711.05101); with SGD part of the gradient, which
            is the same where there is no momentum.
        momentum: SGD's; without it there is no state.
        name: "muon" is for the matrices within blocks; embeddings, output projection and gains stay with AdamW.
        embedding_learning_rate: Of the embedding, if not that of the others (Yang et al. 2022, "Tensor Programs V",
            arXiv 2203.03466, table 3); its decay follows its rate.
        head_learning_rate: The same for an output projection of its own.

    Raises:
        UsageError: this torch has no Muon.
    """
    parameters = [(path, p) for path, p in model.named_parameters() if p.requires_grad]
    decayed = [(path, p) for path, p in parameters if p.ndim >= 2]
    hidden = [p for path, p in decayed if name == "muon" and ".layers." in f".{path}"]
    own_rates = {
        name: rate for name, rate in ((EMBEDDING, embedding_learning_rate), (OUTPUT, head_learning_rate)) if rate
    }
    own = [(p, rate) for path, p in decayed for name, rate in own_rates.items() if path.endswith(name)]
    apart = {id(p) for p in (*hidden, *(p for p, _ in own))}
    groups: list[dict[str, Any]] = [
        {"params": [p for _, p in decayed if id(p) not in apart], "weight_decay": weight_decay},
        {"params": [p for _, p in parameters if p.ndim < 2], "weight_decay": 0.0},
        *({"params": [p], "weight_decay": weight_decay, _RELATIVE_RATE: rate / learning_rate} for p, rate in own),
    ]
    if name == "sgd":
        # One matrix after the other: all at once would copy every gradient to add the decay to it.
        return torch.optim.SGD(groups, lr=learning_rate, momentum=momentum, foreach=False)
    # One kernel for the whole update; torch has it for CPU, CUDA and MPS.
    adamw = torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)
    if name == "adamw":
        return adamw
    if not hasattr(torch.optim, "Muon"):
        raise UsageError(
            f"--optimizer muon needs torch 2.9 or newer; this is {torch.__version__}: update it, or use adamw"
        )
    # This factor makes the update as long as AdamW's usually is, so that rate and decay can be the same: section 2.2 of
    # Liu et al. 2025, "Muon is Scalable for LLM Training" (arXiv 2502.16982).
    muon = torch.optim.Muon(hidden, lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
    return JointOptimizer(muon, adamw)


class JointOptimizer(torch.optim.Optimizer):
    """Several optimizers over different parameters as one: groups and state of all, in one state dict."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self._parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Make the parts work on this object's groups and state."""
        first = 0
        for part in self._parts:
            count = len(part.param_groups)
            part.param_groups = self.param_groups[first : first + count]
            part.state = self.state
            first += count

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Update every parameter."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self._parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state that `state_dict` gave."""
        super().load_state_dict(state_dict)  # replaces groups and state by new objects
        self._share()


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every parameter group this rate, and those with a rate of their own as many times as much as at its peak."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get(_RELATIVE_RATE, 1.0)
