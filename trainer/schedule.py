"""The learning rate at each step."""

import math


def learning_rate(step: int, *, peak: float, min_ratio: float, warmup_steps: int, max_steps: int) -> float:
    """Linear warm-up to `peak`, then half a cosine down to `min_ratio * peak`, and flat after `max_steps`.

    The rule is nanoGPT's (`get_lr` in its train.py): warm-up divides by `warmup_steps + 1`, so that the first step does
    not have a rate of 0.

    Args:
        step: The step about to be taken, from 0.
        peak: The highest rate.
        min_ratio: The last rate as a share of the peak.
        warmup_steps: Steps of growth; 0 for none.
        max_steps: The step at which the decay ends.
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if step >= max_steps:
        return peak * min_ratio
    progress = (step - warmup_steps) / (max_steps - warmup_steps)
    return peak * (min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress)))
