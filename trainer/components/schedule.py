"""The learning rate at each step."""

import math
from typing import Literal

from trainer.settings.train import OptimizationSettings


def learning_rate(
    step: int,
    *,
    peak: float,
    min_ratio: float,
    warmup_steps: int,
    max_steps: int,
    schedule: Literal["cosine", "wsd", "constant"] = "cosine",
    decay_share: float = 0.2,
    decay_shape: Literal["1-sqrt", "linear"] = "1-sqrt",
    warmup_from_zero: bool = False,
) -> float:
    """Linear warm-up to `peak`, then what the schedule says, and flat after `max_steps`.

    - cosine: half a cosine down to `min_ratio * peak`. The rule is nanoGPT's (`get_lr` in its train.py): warm-up
      divides by `warmup_steps + 1`, so that the first step does not have a rate of 0. With `warmup_from_zero` it has,
      as in CS336 (assignment 1, section 4.4).
    - wsd (warm-up, stable, decay): the peak, then down to `min_ratio * peak` over the last steps. Hu et al. 2024,
      "MiniCPM" (arXiv 2404.06395, section 4); the shape 1 - sqrt and the share of 20 % are from Hägele et al. 2024,
      "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations" (arXiv 2405.18392).
    - constant: the peak.

    Args:
        step: The step about to be taken, from 0.
        peak: The highest rate.
        min_ratio: The last rate as a share of the peak.
        warmup_steps: Steps of growth; 0 for none.
        max_steps: The step at which the decay ends.
        schedule: See above.
        decay_share: Of wsd: the share of `max_steps` in which the rate falls, at most what the warm-up leaves.
        decay_shape: Of wsd.
        warmup_from_zero: The first step of a warm-up has a rate of 0.
    """
    if step < warmup_steps:
        return peak * (step / warmup_steps if warmup_from_zero else (step + 1) / (warmup_steps + 1))
    if schedule == "constant":
        return peak
    if step >= max_steps:
        return peak * min_ratio
    start = warmup_steps if schedule == "cosine" else max(warmup_steps, max_steps - round(decay_share * max_steps))
    progress = (step - start) / (max_steps - start) if step > start else 0.0
    if schedule == "cosine":
        height = 0.5 * (1 + math.cos(math.pi * progress))
    else:
        height = 1 - (math.sqrt(progress) if decay_shape == "1-sqrt" else progress)
    return peak * (min_ratio + (1 - min_ratio) * height)


def scheduled_learning_rate(step: int, settings: OptimizationSettings) -> float:
    """The rate of a step, from 0, under a run's settings."""
    return learning_rate(
        step,
        peak=settings.learning_rate,
        min_ratio=settings.min_learning_rate_ratio,
        warmup_steps=settings.warmup_steps or 0,
        max_steps=settings.max_steps,
        schedule=settings.schedule,
        decay_share=settings.decay_share,
        decay_shape=settings.decay_shape,
        warmup_from_zero=settings.warmup_from_zero,
    )
