"""The memory that training takes, by component, from the step's own code."""

import platform
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from shared.lm import ModelConfig, Transformer
from shared.system.memory import resident_memory
from trainer.components.loss import TrainingLoss
from trainer.components.model import apply_recipe
from trainer.components.optimizer import build_optimizer
from trainer.compute.device import Device
from trainer.estimate.trace import AllocationTrace, label_modules
from trainer.settings.train import OptimizationSettings, TrainSettings

PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer state"
_TEMPORARY = "temporary"

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

# glibc leaves gaps where aligned blocks of many sizes come and go: what a step takes beside weights, gradients and
# optimizer state grows to this much of itself within ten steps (docs/lab/log.md has the measurements).
_GLIBC_GAPS = 0.75

_ERROR = 0.1  # how far off the estimate may be (docs/lab/log.md)

_TRACED_TOKENS = 1 << 16  # at once; the loss goes through them 512 at a time, which takes a second for so many


@dataclass(frozen=True)
class StepMemory:
    """Bytes that training takes at its peak.

    Attributes:
        parameters: The weights.
        gradients: Of the weights, as far as they exist at the peak: without accumulation the backward pass makes them
            as it frees activations.
        optimizer: The optimizer's state.
        activations: What the forward pass keeps for the backward pass, and the loss's buffers, by component.
        temporary: What the backward pass or the optimizer holds for a moment.
        gaps: What the allocator loses.
        process: On the CPU, the program itself: Python, torch, and what is loaded.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: dict[str, int]
    temporary: int
    gaps: int
    process: int

    @property
    def total(self) -> int:
        """All of it."""
        tensors = self.parameters + self.gradients + self.optimizer + sum(self.activations.values()) + self.temporary
        return tensors + self.gaps + self.process

    @property
    def least(self) -> int:
        """What it takes if the estimate is as much too high as it may be; what the program holds is known."""
        return self.process + int((1 - _ERROR) * (self.total - self.process))


def step_memory(settings: TrainSettings, config: ModelConfig, device: Device, processes: int = 1) -> StepMemory:
    """The memory that a run's steps take on the device, in one process.

    Args:
        settings: The run's.
        config: The model's.
        device: Where it is to run; it need not have room for any of it.
        processes: How many train together. With FSDP each has its part of weights, gradients and optimizer state; the
            layer that it gathers for a moment is not counted.
    """
    o = settings.optimization
    share = -(-settings.total_batch_size // processes)  # windows of a step in each process
    at_once = min(o.batch_size, share)
    passes = min(2, -(-share // at_once))
    # Nothing else of the settings matters, so that the runs of a sweep share what is found.
    plain = OptimizationSettings(
        batch_size=at_once,
        optimizer=o.optimizer,
        dropout=o.dropout,
        document_mask=o.document_mask,
        z_loss=o.z_loss,
    )
    peak = _peak_of_any_batch(plain, config, device, passes)
    parameters, gradients, state = (peak.pop(name, 0) for name in (PARAMETERS, GRADIENTS, OPTIMIZER))
    if settings.machine.parallel == "fsdp":
        parameters, gradients, state = (size // processes for size in (parameters, gradients, state))
    temporary = peak.pop(_TEMPORARY, 0)
    on_cpu = device.torch_device.type == "cpu"
    gaps = int(_GLIBC_GAPS * (sum(peak.values()) + temporary)) if on_cpu and platform.libc_ver()[0] == "glibc" else 0
    return StepMemory(parameters, gradients, state, peak, temporary, gaps, resident_memory() if on_cpu else 0)


def _peak_of_any_batch(o: OptimizationSettings, config: ModelConfig, device: Device, passes: int) -> dict[str, int]:
    """What `_peak` gives; for batches too large to go through, along the straight line from two smaller ones."""
    most = max(2, _TRACED_TOKENS // config.context_length)
    if o.batch_size <= most:
        return dict(_peak(o, config, device, passes))
    small, large = (dict(_peak(replace(o, batch_size=size), config, device, passes)) for size in (most // 2, most))
    steps = (o.batch_size - most) / (most - most // 2)
    return {
        name: max(0, round(large.get(name, 0) + steps * (large.get(name, 0) - small.get(name, 0))))
        for name in small | large
    }


@lru_cache(maxsize=64)
def _peak(o: OptimizationSettings, config: ModelConfig, device: Device, passes: int) -> tuple[tuple[str, int], ...]:
    """Bytes at the peak of a step of `passes` passes, by component, once the optimizer has its state."""
    random = torch.get_rng_state()
    try:
        # Moved rather than made there: `torch.device` sends only some of a module's tensors to the device it names.
        with torch.device("meta"):
            model = Transformer(config)
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
        model, learning_rate=o.learning_rate, betas=o.betas, weight_decay=o.weight_decay, name=o.optimizer
    )
    trace.component = GRADIENTS
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    trace.component = _TEMPORARY
    optimizer.step()
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.device.type == device.torch_device.type:
                trace.belongs(value, OPTIMIZER)
    optimizer.zero_grad()
    training_loss = TrainingLoss(model)
    label_modules(trace, training_loss, _COMPONENTS)
    shape = (o.batch_size, model.config.context_length)
    tokens = torch.zeros(shape, dtype=torch.int64, device=device.torch_device)
    scale = torch.ones((), device=device.torch_device)
    for _ in range(passes):
        with device.autocast():
            loss, _ = training_loss(tokens, tokens, scale=scale, z_loss=o.z_loss)
        trace.component = _TEMPORARY
        loss.backward()
        del loss
        for parameter in model.parameters():
            if parameter.grad is not None:
                trace.belongs(parameter.grad, GRADIENTS)
    nn.utils.clip_grad_norm_(model.parameters(), o.clip_grad_norm or float("inf"))
    optimizer.step()
