"""Settings of what happens when training diverges."""

from dataclasses import dataclass
from typing import Literal

from cyclopts import Group, Parameter

from trainer.settings.checks import require


@Parameter(name="*", group=Group("Divergence: when the loss is no number, or jumps", sort_key=6))
@dataclass(frozen=True, kw_only=True)
class DivergenceSettings:
    """What to do when a step's loss or gradient is not a finite number, or the loss jumps."""

    on_divergence: Literal["stop", "skip", "rollback"] = "stop"
    """stop: end the run; the last checkpoint is intact, and the message names it. skip: leave that step's update out
    and go on. rollback: go back to the last checkpoint and on from there with other data. A run that you leave alone
    for days wants rollback."""

    spike_threshold: float = 0.0
    """A loss this many deviations above the median of the last 100 counts as divergence too; 0: only what is not a
    number does. The deviation is the median one (x 1.4826), which spikes themselves do not move. 20 catches a jump that
    matters; below 8, chance alone will do it once in a long run."""

    max_skips: int = 5
    """With skip: the run stops where this many steps in a row were not enough."""

    max_rollbacks: int = 3
    """With rollback: the run stops where this many in all were not enough."""

    rollback_learning_rate_factor: float = 1.0
    """With rollback: multiply the learning rate by this from there on. 1 trusts that other data is enough; 0.5 is for
    a rate that may be too high."""

    def __post_init__(self) -> None:
        require(self, 0, "spike_threshold")
        require(self, 1, "max_skips", "max_rollbacks")
        require(self, 0.01, "rollback_learning_rate_factor", maximum=1)
