"""The speed of a run, measured in its first steps, and the time that the others will take."""

import logging
from datetime import timedelta

from trainer.settings.stages import StepShapes
from trainer.training.loop import Step

logger = logging.getLogger(__name__)

_WARMUP_STEPS = 5
"""Not measured: memory grows, caches fill, and `--compile` compiles."""
_MEASURED_STEPS = 15


class Forecast:
    """Logs the tokens per second and the time left, once, as soon as enough steps were measured.

    Args:
        last_step: Where the run will end.
        shapes: The batch shape, and so the number of tokens, of every step.
    """

    def __init__(self, last_step: int, shapes: StepShapes) -> None:
        self._last_step, self._shapes = last_step, shapes
        self._steps: list[Step] = []

    def add(self, step: Step) -> None:
        """Count a step; the first one given may have any number, as in a resumed run."""
        if len(self._steps) == _WARMUP_STEPS + _MEASURED_STEPS:
            return
        self._steps.append(step)
        if len(self._steps) == _WARMUP_STEPS + _MEASURED_STEPS and step.number < self._last_step:
            measured = self._steps[_WARMUP_STEPS:]
            rate = sum(each.tokens for each in measured) / sum(each.seconds for each in measured)
            tokens = self._shapes.tokens(self._last_step) - self._shapes.tokens(step.number)
            logger.info(
                "step %d: %s tokens/s measured; %s left without evaluations and checkpoints",
                *(step.number, f"{rate:,.0f}", timedelta(seconds=round(tokens / rate))),
            )
