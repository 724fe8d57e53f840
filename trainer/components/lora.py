"""Low-rank adapters (LoRA): small matrices beside frozen ones, and how they become part of them.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv 2106.09685).
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor, nn

from shared.lm import ModelConfig, Transformer
from shared.lm.linear import Linear, linear
from shared.lm.weight_shapes import weight_shapes
from trainer.errors import UsageError
from trainer.settings.lora import LoraSettings


class AdaptedLinear(nn.Module):
    """A linear layer whose weight W is frozen, and an adapter that is trained: W x + b + scale B A x.

    A begins as random numbers and B as zero, so that the first step begins with the frozen layer's output.

    Args:
        layer: What is adapted; its parameters keep their names.
        rank: Rows of A, and columns of B.
        scale: What the product counts.
    """

    def __init__(self, layer: Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.weight, self.bias, self.scale = layer.weight, layer.bias, scale
        outputs, inputs = layer.weight.shape
        self.lora_A = nn.Parameter(layer.weight.new_empty(rank, inputs))
        self.lora_B = nn.Parameter(layer.weight.new_zeros(outputs, rank))
        if not self.lora_A.is_meta:
            nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)  # as in the paper's own code, and in PEFT

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        frozen, low = linear(x, self.weight, self.bias), F.linear(x, self.lora_A)
        # One operator, which makes no copy of the product.
        out = torch.addmm(frozen.flatten(0, -2), low.flatten(0, -2), self.lora_B.t(), alpha=self.scale)
        return out.view(frozen.shape)

    def merged(self) -> Tensor:
        """The weight with the adapter in it, in float32; itself, to the bit, where the adapter is zero."""
        if not self.lora_B.any():
            return self.weight
        return torch.addmm(self.weight.float(), self.lora_B.float(), self.lora_A.float(), alpha=self.scale)


def adapter_sizes(config: ModelConfig, lora: LoraSettings) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of the layers of a block that have adapters.

    Raises:
        UsageError: the model has no such layer, or the rank is beyond one of its sides.
    """
    suffixes = {name.split(".")[-2]: shape for name, shape in weight_shapes(config).items() if ".layers.0." in name}
    asked = [name for name in lora.targets if not lora.all_linear or name in suffixes]
    if missing := [name for name in asked if name not in suffixes]:
        raise UsageError(f"--lora-targets: this model has no {missing[0]}, since its activation is {config.activation}")
    sizes = {name: (suffixes[name][0], suffixes[name][1]) for name in asked}
    for name, shape in sizes.items():
        if lora.lora_rank is not None and lora.lora_rank > min(shape):
            raise UsageError(
                f"--lora-rank ({lora.lora_rank}) must be at most {min(shape)}: {name} has a weight of {shape[0]} x "
                f"{shape[1]}, and a product of higher rank is no smaller than it"
            )
    return sizes


def trained_parameters(config: ModelConfig, lora: LoraSettings) -> int:
    """The number of parameters that are trained: all of a model's, or those of its adapters."""
    if lora.lora_rank is None:
        return config.num_parameters
    sides = sum(outputs + inputs for outputs, inputs in adapter_sizes(config, lora).values())
    return config.num_layers * sides * lora.lora_rank


def add_adapters(model: Transformer, lora: LoraSettings) -> None:
    """Freeze a model's weights, and add adapters, whose numbers come from torch's global generator.

    Does nothing without LoRA.

    Raises:
        UsageError: see `adapter_sizes`.
    """
    if lora.lora_rank is None:
        return
    names = adapter_sizes(model.config, lora)
    model.requires_grad_(requires_grad=False)
    for path, layer in list(model.model.layers.named_modules()):
        parent, _, name = path.rpartition(".")
        if isinstance(layer, Linear) and name in names:
            setattr(model.model.layers.get_submodule(parent), name, AdaptedLinear(layer, lora.lora_rank, lora.scale))


def adapted_layers(model: nn.Module) -> dict[str, AdaptedLinear]:
    """The layers that have adapters, by their names."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, AdaptedLinear)}


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """A and B of every adapter, on the CPU, by their names in the model; empty without adapters."""
    return {
        f"{path}.{name}": getattr(layer, name).detach().cpu()
        for path, layer in adapted_layers(model).items()
        for name in ("lora_A", "lora_B")
    }


@torch.no_grad()
def load_adapter(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Take over the adapters that `adapter_weights` gave."""
    own: dict[str, Any] = dict(model.named_parameters())
    for name, weight in weights.items():
        own[name].copy_(weight)


@torch.no_grad()
def merged_model(model: Transformer) -> Transformer:
    """A plain model that computes the same: itself without adapters, else one that shares what is not adapted."""
    layers = adapted_layers(model)
    if not layers:
        return model
    weights = {name: weight for name, weight in model.state_dict().items() if not name.endswith(("lora_A", "lora_B"))}
    weights |= {f"{path}.weight": layer.merged() for path, layer in layers.items()}
    with torch.device("meta"):
        plain = Transformer(model.config)
    plain.load_state_dict(weights, assign=True)
    return plain.to(model.output_weight.device).eval()
