"""The memory that training takes at its peak."""

import platform
from collections.abc import Callable
from dataclasses import dataclass

from shared.lm import ModelConfig
from shared.system.memory import resident_memory
from trainer.components.lora import trained_parameters
from trainer.compute.device import Device
from trainer.estimate.formula import GRADIENTS, OPTIMIZER, PARAMETERS, TEMPORARY, formula_peak
from trainer.settings.lora import LoraSettings
from trainer.settings.train import OptimizationSettings, TrainSettings

Peak = Callable[[OptimizationSettings, ModelConfig, Device, int, LoraSettings], dict[str, int]]
"""Gives the bytes at the peak of a step by component: `formula_peak` or `traced_peak`."""

# glibc leaves gaps where aligned blocks of many sizes come and go: what a step takes beside weights, gradients and
# optimizer state grows to this much of itself within ten steps (docs/lab/log.md has the measurements).
_GLIBC_GAPS = 0.75
# Of a step that computes blocks again: little is alive at once, and the inputs of blocks lie in between.
_GLIBC_GAPS_OF_CHECKPOINTING = 2.9

_ERROR = 0.1  # how far off the estimate may be on a CPU (docs/lab/log.md)


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
        process: On the CPU, the program itself: Python, torch, and what is loaded; 0 elsewhere.
        all_gradients: The gradients of all trained weights, which exist together at each update.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: dict[str, int]
    temporary: int
    gaps: int
    process: int
    all_gradients: int

    @property
    def total(self) -> int:
        """All of it."""
        tensors = self.parameters + self.gradients + self.optimizer + sum(self.activations.values()) + self.temporary
        return tensors + self.gaps + self.process

    @property
    def least(self) -> int:
        """What it takes at least, should the estimate be too high.

        On a CPU its error was measured, and what the program holds is known. Elsewhere only weights, gradients and
        optimizer state are certain: they exist together at each update, and no kernel changes them.
        """
        if self.process:
            return self.process + int((1 - _ERROR) * (self.total - self.process))
        return self.parameters + self.all_gradients + self.optimizer


def step_memory(
    settings: TrainSettings, config: ModelConfig, device: Device, processes: int = 1, *, peak: Peak = formula_peak
) -> StepMemory:
    """The memory that a run's steps take on the device, in one process.

    Args:
        settings: The run's.
        config: The model's.
        device: Where it is to run; it need not have room for any of it.
        processes: How many train together. With FSDP each has its part of weights, gradients and optimizer state; the
            layer that it gathers for a moment is not counted.
        peak: Measures a step: the closed formula, or `traced_peak`, which goes through the step's code.
    """
    o = settings.optimization
    at_once, passes = _largest_pass(settings, processes)
    # Nothing else of the settings matters, so that the runs of a sweep share what is found.
    plain = OptimizationSettings(
        batch_size=at_once,
        optimizer=o.optimizer,
        momentum=o.momentum,
        dropout=o.dropout,
        document_mask=o.document_mask,
        z_loss=o.z_loss,
        checkpoint_activations=o.checkpoint_activations,
    )
    sizes = peak(plain, config, device, passes, settings.lora)
    trained = 4 * trained_parameters(config, settings.lora)
    parameters, gradients, state = (sizes.pop(name, 0) for name in (PARAMETERS, GRADIENTS, OPTIMIZER))
    shards = processes if settings.machine.parallel == "fsdp" else 1
    parameters, gradients, state = (size // shards for size in (parameters, gradients, state))
    temporary = sizes.pop(TEMPORARY, 0)
    on_cpu = device.torch_device.type == "cpu"
    gaps = 0
    if on_cpu and platform.libc_ver()[0] == "glibc":
        share = _GLIBC_GAPS_OF_CHECKPOINTING if o.checkpoint_activations else _GLIBC_GAPS
        gaps = int(share * (sum(sizes.values()) + temporary))
    process = resident_memory() if on_cpu else 0
    return StepMemory(parameters, gradients, state, sizes, temporary, gaps, process, trained // shards)


def _largest_pass(settings: TrainSettings, processes: int) -> tuple[int, int]:
    """Windows of the full context that are at once in a process at most, and passes of a step, 2 standing for more."""
    full, at_once, passes = settings.model.context_length, 1, 1
    for stage in settings.shapes.stages:
        share, most = -(-stage.windows // processes), settings.optimization.batch_size * (full // stage.length)
        at_once = max(at_once, -(-min(share, most) * stage.length // full))
        passes = max(passes, min(2, -(-share // most)))
    return at_once, passes
