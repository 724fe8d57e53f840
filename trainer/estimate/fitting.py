"""The largest batch that fits into memory, and advice for runs that do not fit."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shared.lm import ModelConfig
from trainer.compute.device import Device
from trainer.errors import UsageError
from trainer.estimate.formula import formula_peak
from trainer.estimate.memory import Peak, StepMemory, step_memory
from trainer.settings.train import TrainSettings

logger = logging.getLogger(__name__)

_LARGEST_BATCH = 1 << 30
_SHORTEST_CONTEXT = 16  # below, a smaller model is the better advice


def largest_that_fits(limit: int, takes: Callable[[int], int], most: int) -> int:
    """The largest number from 1 to `most` for which `takes` is at most `limit`; 0 if there is none.

    Args:
        limit: Bytes there are.
        takes: Bytes that a number takes; grows with it, nearly in a straight line, so that few are asked for.
        most: Where to stop.
    """
    if takes(1) > limit:
        return 0
    low, low_bytes, high = 1, takes(1), most + 1
    guess = min(2, most)
    while high - low > 1:
        guess = min(max(guess, low + 1), high - 1)
        size = takes(guess)
        if size > limit:
            high = guess
            guess = low + (high - low) // 2
        else:
            slope = max(1, (size - low_bytes) // (guess - low))
            low, low_bytes = guess, size
            guess = low + (limit - size) // slope
    return low


def with_batch(settings: TrainSettings, size: int, total: int | None = None) -> TrainSettings:
    """The settings with other windows at once, and a total that is a multiple of them."""
    changed = replace(settings.optimization, batch_size=size, total_batch_size=total or size)
    return replace(settings, optimization=changed)


def largest_batch(
    settings: TrainSettings,
    config: ModelConfig,
    device: Device,
    room: int,
    processes: int = 1,
    *,
    peak: Peak = formula_peak,
) -> int:
    """The most windows at once, in each process, for which a step fits into `room` bytes; 0 if none does.

    A run that accumulates gradients does so with any number of windows at once.
    """
    passes = 2 if settings.total_batch_size > settings.optimization.batch_size * processes else 1

    def takes(size: int) -> int:
        changed = with_batch(settings, size, passes * size * processes)
        return step_memory(changed, config, device, processes, peak=peak).total

    return largest_that_fits(room, takes, _LARGEST_BATCH)


def check_fit(
    settings: TrainSettings, config: ModelConfig, device: Device, room: int, processes: int = 1
) -> StepMemory:
    """Refuse a run that certainly takes more memory than there is; warn of one that the estimate may be wrong about.

    Args:
        settings: The run's.
        config: The model's.
        device: Where it is to run.
        room: Bytes there are for each process.
        processes: How many train together.

    Returns:
        The memory that a step takes in one process.

    Raises:
        UsageError: it does not fit; names the nearest settings that do.
    """
    memory = step_memory(settings, config, device, processes)
    if memory.total <= room:
        return memory
    figures = f"a step takes about {memory.total / 1e9:.2f} GB, and {room / 1e9:.2f} GB are available"
    advice = _nearest(settings, config, device, room, processes)
    if memory.least > room:
        raise UsageError(f"this run does not fit into memory: {figures}; {advice}")
    on_cpu = device.torch_device.type == "cpu"
    reason = "within the error of the estimate" if on_cpu else "by a formula that was not measured on such a device"
    logger.warning(
        "this run may not fit into memory: %s, %s, so the run starts; if memory runs out, %s", figures, reason, advice
    )
    return memory


def _nearest(
    settings: TrainSettings, config: ModelConfig, device: Device, room: int, processes: int, *, more: str = ""
) -> str:
    """What to change, as options; `more` are those that the settings have been changed by already."""
    total, asked = settings.total_batch_size, settings.optimization.batch_size

    def takes(size: int, **shape: Any) -> int:
        """Bytes, with windows accumulated where the batch is more than `size` in all processes."""
        passes = 2 if total > size * processes else 1
        changed = with_batch(settings, size, total=passes * size * processes)
        return step_memory(changed, replace(config, **shape), device, processes).total

    most = largest_that_fits(room, takes, asked)
    size = next((size for size in range(most, 0, -1) if total % (size * processes) == 0), 0)
    if size:
        return f"the same batch fits with {more}--batch-size {size} --total-batch-size {total}"
    rest = f"--batch-size 1 --total-batch-size {total}"
    if not settings.optimization.checkpoint_activations:
        thrifty = replace(settings, optimization=replace(settings.optimization, checkpoint_activations=True))
        return _nearest(thrifty, config, device, room, processes, more="--checkpoint-activations ")
    rest = more + rest
    length = largest_that_fits(room, lambda length: takes(1, context_length=length), config.context_length)
    if length >= _SHORTEST_CONTEXT:
        return f"not even one window fits; one fits with --context-length {length} {rest}"
    if settings.parent.init is not None:
        return "the model is too large for this device"
    layers = largest_that_fits(room, lambda layers: takes(1, num_layers=layers), config.num_layers)
    if layers:
        return f"the model is too large; it fits with --num-layers {layers} {rest}"
    return "the model is too large; choose a smaller --d-model or vocabulary"
