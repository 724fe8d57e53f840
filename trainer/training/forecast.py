"""The speed of a run, measured in its first steps, and the time that the others will take."""

import logging
import statistics
from datetime import timedelta

from trainer.training.loop import Step

logger = logging.getLogger(__name__)

_WARMUP_STEPS = 5
"""Not measured: memory grows, caches fill, and `--compile` compiles."""
_MEASURED_STEPS = 15


class Forecast:
    """Logs the tokens a second and the time left, once, as soon as enough steps were measured.

    Args:
        last_step: Where the run will end.
        tokens_per_step: Tokens of one step.
    """

    def __init__(self, last_step: int, tokens_per_step: int) -> None:
        self._last_step, self._tokens_per_step = last_step, tokens_per_step
        self._seconds: list[float] = []

    def add(self, step: Step) -> None:
        """Count a step; the first one given may have any number, as in a resumed run."""
        if len(self._seconds) == _WARMUP_STEPS + _MEASURED_STEPS:
            return
        self._seconds.append(step.seconds)
        if len(self._seconds) == _WARMUP_STEPS + _MEASURED_STEPS and step.number < self._last_step:
            seconds = statistics.fmean(self._seconds[_WARMUP_STEPS:])
            left = timedelta(seconds=round(seconds * (self._last_step - step.number)))
            logger.info(
                "step %d: %s tokens/s measured; %s left without evaluations and checkpoints",
                *(step.number, f"{self._tokens_per_step / seconds:,.0f}", left),
            )
