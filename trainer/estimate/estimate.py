"""The estimate of a run: memory, operations and time."""

from dataclasses import dataclass

from shared.lm import ModelConfig
from shared.lm.accounting import BACKWARD_PER_FORWARD, forward_flops, optimizer_flops
from trainer.compute.device import Device
from trainer.errors import UsageError
from trainer.estimate.formula import formula_peak
from trainer.estimate.machine import available_memory
from trainer.estimate.memory import Peak, StepMemory, step_memory
from trainer.estimate.speed import MeasuredSteps, matmul_rate, measure_steps, usual_utilization
from trainer.settings.stages import Stage
from trainer.settings.train import TrainSettings


@dataclass(frozen=True)
class Speed:
    """How fast it is on this device.

    Attributes:
        flops_per_second: Model operations a second.
        matmul_flops_per_second: What the device reaches in the model's matrix products alone.
        tokens_per_second: Of training.
        measured: The measured steps; None where the speed is the matrix products' rate times a typical utilization.
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
        device: Where.
        memory: At the peak of a step.
        available: Bytes there are for it.
        speed: On the device.
    """

    config: ModelConfig
    settings: TrainSettings
    device: Device
    memory: StepMemory
    available: int
    speed: Speed

    @property
    def step_flops(self) -> int:
        """Operations of one optimizer step: forward and backward of all its tokens, and the update."""
        return step_flops(self.settings, self.config)

    @property
    def run_tokens(self) -> int:
        """Tokens of the whole run, those seen again counted again."""
        return self.settings.shapes.tokens(self.settings.optimization.max_steps)

    def seconds(self, tokens: int) -> float:
        """The time of training on so many tokens from the run's start, without evaluations and checkpoints."""
        stages = self.settings.shapes.divide(tokens)
        flops = sum(steps * step_flops(self.settings, self.config, stage) for stage, steps in stages)
        return flops / self.speed.flops_per_second


def step_flops(settings: TrainSettings, config: ModelConfig, stage: Stage | None = None) -> int:
    """Operations of one optimizer step: of a stage of the run, or of the full batch and context."""
    windows, length = (settings.total_batch_size, None) if stage is None else (stage.windows, stage.length)
    forward = forward_flops(config, sequences=windows, length=length).total
    return (1 + BACKWARD_PER_FORWARD) * forward + optimizer_flops(config, settings.optimization.optimizer)


def estimate_run(
    settings: TrainSettings,
    config: ModelConfig,
    device: Device,
    *,
    processes: int = 1,
    measure: bool = False,
    peak: Peak = formula_peak,
) -> Estimate:
    """Estimate a run on this device.

    Args:
        settings: The run's.
        config: The model's.
        device: Where it is to run.
        processes: How many train together, each on a device like this one; what they exchange is not counted.
        measure: Take a few real steps.
        peak: See `step_memory`.

    Raises:
        UsageError: steps are to be measured that do not fit into memory.
    """
    memory = step_memory(settings, config, device, processes, peak=peak)
    available = available_memory(device.torch_device)
    if measure and memory.least > available:
        raise UsageError(
            f"cannot measure: a step takes about {memory.total / 1e9:.1f} GB, and {available / 1e9:.1f} GB are "
            "available; omit --measure, or lower --batch-size"
        )
    speed = _speed(settings, config, device, processes, measure=measure)
    return Estimate(config, settings, device, memory, available, speed)


def _speed(settings: TrainSettings, config: ModelConfig, device: Device, processes: int, *, measure: bool) -> Speed:
    rate = matmul_rate(config, settings.optimization.batch_size * config.context_length, device)
    flops = step_flops(settings, config)
    if not measure:
        per_second = processes * usual_utilization(device) * rate
        return Speed(per_second, rate, settings.tokens_per_step * per_second / flops, None)
    steps = measure_steps(settings, config, device)
    return Speed(flops / steps.seconds, rate, settings.tokens_per_step / steps.seconds, steps)
