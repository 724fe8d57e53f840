"""Settings of what happens when training diverges."""

from dataclasses import dataclass
from typing import Literal

from cyclopts import Group, Parameter

from trainer.settings.fields import Settings, setting


@Parameter(name="*", group=Group("Divergence: when the loss is NaN, infinite, or jumps", sort_key=6))
@dataclass(frozen=True, kw_only=True)
class DivergenceSettings(Settings, affects="watching"):
    """What to do when a step's loss or gradient is NaN or infinite, or the loss jumps."""

    on_divergence: Literal["stop", "skip", "rollback"] = "stop"
    """stop: end the run; the last checkpoint is intact, and the message names it. skip: skip that step's update and
    continue. rollback: return to the last checkpoint and continue from there with other data. Use rollback for a run
    that is left alone for days."""

    spike_threshold: float = setting(0.0, minimum=0)
    """A loss this many deviations above the median of the last 100 counts as divergence too; 0: only a NaN or infinite
    loss does. The deviation is the median absolute deviation (x 1.4826), which spikes themselves do not change. 20
    catches a jump that matters; below 8, chance alone triggers it once in a long run."""

    max_skips: int = setting(5, minimum=1)
    """With skip: the run stops after more than this many skipped steps in a row."""

    max_rollbacks: int = setting(3, minimum=1)
    """With rollback: the run stops after this many rollbacks in all."""

    rollback_learning_rate_factor: float = setting(1.0, minimum=0.01, maximum=1)
    """With rollback: multiply the learning rate by this from there on. 1 where other data should be enough; 0.5 where
    the rate may be too high."""
