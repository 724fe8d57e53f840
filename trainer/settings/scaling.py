"""The settings of the dial that others derive from, see `trainer.recipes.scaling`."""

from dataclasses import dataclass
from typing import Literal

from cyclopts import Group, Parameter

PresetName = Literal[
    "stories260k",
    "stories15m",
    "stories42m",
    "stories110m",
    "tinystories-33m",
    "cs336",
    "nanogpt-char",
    "smollm-135m",
    "gpt2-small",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
]


@Parameter(name="*", group=Group("Size: one dial for all that follows from it", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class DialSettings:
    """What the shape of the model, the batch, the learning rate and the number of steps derive from, where they do."""

    depth: int | None = None
    """Layers; width, batch, learning rate and steps follow, and are printed with their sources. 4 to 8 for stories on a
    CPU; 12 is GPT-2's smallest, for a GPU. Whatever you set yourself wins."""

    preset: PresetName | None = None
    """A published shape instead of a depth; batch, learning rate and steps follow as well."""
