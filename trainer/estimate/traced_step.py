"""The memory that a training step takes at its peak, recorded from the step's own code."""

from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from shared.lm import ModelConfig, Transformer
from trainer.components.lora import add_adapters
from trainer.components.loss import TrainingLoss
from trainer.components.model import apply_recipe
from trainer.components.optimizer import build_optimizer
from trainer.compute.device import Device
from trainer.estimate.formula import GRADIENTS, OPTIMIZER, PARAMETERS, TEMPORARY
from trainer.estimate.trace import AllocationTrace, label_modules
from trainer.settings.lora import ALL_WEIGHTS, LoraSettings
from trainer.settings.train import OptimizationSettings

_COMPONENTS = {
    "embed_tokens": "embedding",
    "self_attn": "attention",
    "mlp": "feed-forward",
    "input_layernorm": "norms",
    "post_attention_layernorm": "norms",
    "post_feedforward_layernorm": "norms",
    "norm": "norms",
    "model": "residual stream",
    "": "loss",
}

_TRACED_TOKENS = 1 << 16  # at once; the loss goes through them 512 at a time, which takes a second for so many


def traced_peak(
    o: OptimizationSettings, config: ModelConfig, device: Device, passes: int, lora: LoraSettings = ALL_WEIGHTS
) -> dict[str, int]:
    """Bytes at the peak of a step of `passes` passes, by component, once the optimizer has its state.

    Batches too large to trace are extrapolated from two smaller ones, in a straight line.
    """
    most = max(2, _TRACED_TOKENS // config.context_length)
    if o.batch_size <= most:
        return dict(_peak(o, config, device, passes, lora))
    small, large = (
        dict(_peak(replace(o, batch_size=size), config, device, passes, lora)) for size in (most // 2, most)
    )
    steps = (o.batch_size - most) / (most - most // 2)
    return {
        name: max(0, round(large.get(name, 0) + steps * (large.get(name, 0) - small.get(name, 0))))
        for name in small | large
    }


@lru_cache(maxsize=64)
def _peak(
    o: OptimizationSettings, config: ModelConfig, device: Device, passes: int, lora: LoraSettings
) -> tuple[tuple[str, int], ...]:
    """Bytes at the peak of a step of `passes` passes, by component, once the optimizer has its state."""
    random = torch.get_rng_state()
    try:
        # Moved rather than made there: `torch.device` sends only some of a module's tensors to the device it names.
        with torch.device("meta"):
            model = Transformer(config)
        add_adapters(model, lora)
        with FakeTensorMode(), AllocationTrace() as trace:
            trace.component = PARAMETERS
            model._apply(partial(_empty_on, device.torch_device)).train()  # type: ignore[no-untyped-call]
            _take_step(trace, model, o, device, passes)
        return tuple(trace.peak().items())
    finally:
        torch.set_rng_state(random)


def _empty_on(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def _take_step(
    trace: AllocationTrace, model: Transformer, o: OptimizationSettings, device: Device, passes: int
) -> None:
    """A first update, which makes the optimizer's state, and a step with it."""
    apply_recipe(model, o, end_of_text_id=0)
    optimizer = build_optimizer(
        model,
        learning_rate=o.learning_rate,
        betas=o.betas,
        weight_decay=o.weight_decay,
        momentum=o.momentum,
        name=o.optimizer,
    )
    trace.component = GRADIENTS
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    trace.component = TEMPORARY
    optimizer.step()
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.device.type == device.torch_device.type:
                trace.assign(value, OPTIMIZER)
    optimizer.zero_grad()
    training_loss = TrainingLoss(model)
    label_modules(trace, training_loss, _COMPONENTS)
    shape = (o.batch_size, model.config.context_length)
    tokens = torch.zeros(shape, dtype=torch.int64, device=device.torch_device)
    scale = torch.ones((), device=device.torch_device)
    for _ in range(passes):
        with device.autocast():
            loss, _ = training_loss(tokens, tokens, scale=scale, z_loss=o.z_loss)
        trace.component = TEMPORARY
        loss.backward()
        del loss
        for parameter in model.parameters():
            if parameter.grad is not None:
                trace.assign(parameter.grad, GRADIENTS)
    nn.utils.clip_grad_norm_(model.parameters(), o.clip_grad_norm or float("inf"))
    optimizer.step()
