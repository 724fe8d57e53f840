"""The estimate of a run: memory, operations and time."""

import dataclasses
from dataclasses import dataclass

from shared.lm import ModelConfig
from shared.lm.accounting import ADAMW_FLOPS, BACKWARD_PER_FORWARD, forward_flops, optimizer_flops
from trainer.components.lora import trained_parameters
from trainer.errors import UsageError
from trainer.estimate.fitting import largest_batch
from trainer.estimate.formula import formula_peak
from trainer.estimate.memory import Peak, StepMemory, step_memory
from trainer.estimate.speed import MeasuredSteps, matmul_rate, measure_steps, usual_utilization
from trainer.estimate.target import Target
from trainer.settings.stages import Stage
from trainer.settings.train import TrainSettings


@dataclass(frozen=True)
class Speed:
    """How fast it is on all devices together.

    Attributes:
        flops_per_second: Model operations a second.
        matmul_flops_per_second: What the devices reach in matrix products alone: measured here with the model's
            shapes, or the peak of a described machine.
        tokens_per_second: Of training.
        measured: The measured steps; None where the speed is the matrix products' rate times a utilization.
    """

    flops_per_second: float
    matmul_flops_per_second: float
    tokens_per_second: float
    measured: MeasuredSteps | None

    @property
    def utilization(self) -> float:
        """The first as a share of the second."""
        return self.flops_per_second / self.matmul_flops_per_second


@dataclass(frozen=True)
class Estimate:
    """What a run takes.

    Attributes:
        config: The model's.
        settings: The run's.
        target: Where.
        memory: Of each process at the peak of a step.
        largest_batch: The most windows at once whose step fits into the target's memory: 0 if not even one does, None
            if the memory is not known.
        speed: Of all devices together; None if it is not known.
    """

    config: ModelConfig
    settings: TrainSettings
    target: Target
    memory: StepMemory
    largest_batch: int | None
    speed: Speed | None

    @property
    def step_flops(self) -> int:
        """Operations of one optimizer step: forward and backward of all its tokens, and the update."""
        return step_flops(self.settings, self.config)

    @property
    def run_tokens(self) -> int:
        """Tokens of the whole run, those seen again counted again."""
        return self.settings.shapes.tokens(self.settings.optimization.max_steps)

    def seconds(self, tokens: int) -> float | None:
        """The time of training on so many tokens from the run's start, without evaluations and checkpoints.

        None if it is not known.
        """
        if self.speed is None:
            return None
        stages = self.settings.shapes.divide(tokens)
        flops = sum(steps * step_flops(self.settings, self.config, stage) for stage, steps in stages)
        return flops / self.speed.flops_per_second


def pass_flops(
    settings: TrainSettings, config: ModelConfig, *, sequences: int = 1, length: int | None = None
) -> tuple[dict[str, int], dict[str, int]]:
    """Operations of the forward pass and of the backward pass, by component, under LoRA with that of the adapters.

    Args:
        settings: The run's.
        config: The model's.
        sequences: How many there are.
        length: Their tokens; the context length if None.
    """
    forward = dataclasses.asdict(forward_flops(config, sequences=sequences, length=length))
    if settings.lora.lora_rank is None:
        return forward, {name: BACKWARD_PER_FORWARD * value for name, value in forward.items()}
    # The backward pass has no product for the gradient of a frozen weight; every number of an adapter is in one
    # product of a token in the forward pass and in two of the backward pass.
    backward = {name: (BACKWARD_PER_FORWARD if name == "scores" else 1) * value for name, value in forward.items()}
    adapters = 2 * sequences * (length or config.context_length) * trained_parameters(config, settings.lora)
    return forward | {"adapters": adapters}, backward | {"adapters": BACKWARD_PER_FORWARD * adapters}


def update_flops(settings: TrainSettings, config: ModelConfig) -> int:
    """Operations of the optimizer's step; the numbers of adapters count as AdamW's."""
    o = settings.optimization
    if settings.lora.lora_rank is not None:
        return ADAMW_FLOPS * trained_parameters(config, settings.lora)
    return optimizer_flops(config, o.optimizer, momentum=o.momentum)


def step_flops(settings: TrainSettings, config: ModelConfig, stage: Stage | None = None) -> int:
    """Operations of one optimizer step: of a stage of the run, or of the full batch and context."""
    windows, length = (settings.total_batch_size, None) if stage is None else (stage.windows, stage.length)
    passes = pass_flops(settings, config, sequences=windows, length=length)
    return sum(value for one in passes for value in one.values()) + update_flops(settings, config)


def estimate_run(
    settings: TrainSettings, config: ModelConfig, target: Target, *, measure: bool = False, peak: Peak = formula_peak
) -> Estimate:
    """Estimate a run.

    Args:
        settings: The run's.
        config: The model's.
        target: Where it is to run. Several devices train together; what they exchange is not counted.
        measure: Take a few real steps, on one device of this machine.
        peak: See `step_memory`.

    Raises:
        UsageError: steps are to be measured that do not fit into memory.
    """
    memory = step_memory(settings, config, target.device, target.devices, peak=peak)
    if measure and target.memory is not None and memory.least > target.memory:
        raise UsageError(
            f"cannot measure: a step takes about {memory.total / 1e9:.1f} GB, and {target.memory / 1e9:.1f} GB are "
            "available; omit --measure, or lower --batch-size"
        )
    largest = None
    if target.memory is not None:
        largest = largest_batch(settings, config, target.device, target.memory, target.devices, peak=peak)
    return Estimate(config, settings, target, memory, largest, _speed(settings, config, target, measure=measure))


def _speed(settings: TrainSettings, config: ModelConfig, target: Target, *, measure: bool) -> Speed | None:
    rate = target.peak
    if rate is None and target.here:
        rate = matmul_rate(config, settings.optimization.batch_size * config.context_length, target.device)
    if rate is None:
        return None
    flops = step_flops(settings, config)
    if measure:
        steps = measure_steps(settings, config, target.device)
        return Speed(flops / steps.seconds, rate, settings.tokens_per_step / steps.seconds, steps)
    rate *= target.devices
    share = target.utilization or usual_utilization(settings, config, target.device, rate / target.devices, flops)
    per_second = share * rate
    return Speed(per_second, rate, settings.tokens_per_step * per_second / flops, None)
