"""The settings of a run that is not started."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from trainer.settings.train import TrainSettings


@Parameter(name="*", group=Group("Folders", sort_key=0))
@dataclass(frozen=True, kw_only=True)
class PlanSettings(TrainSettings):
    """The run's settings, which need neither data nor output."""

    data: Annotated[Path, Parameter(show_default=False)] = Path()
    """Folder that `encode` wrote; only the size of its vocabulary matters, so --vocab-size may stand for it."""

    output: Annotated[Path, Parameter(show_default=False)] = Path()
    """Not written to; here so that a run's train.toml serves as --config."""
