"""A color for each run, the same in all figures and in the table."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex

from trainer.runs.results import RunResults

# Of Tableau's ten, those that can be read on white and on black.
_COLORS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#c9a227", "#ff7f9b", "#9c755f", "#8b8b8b")


def colors_of(runs: Sequence[RunResults]) -> list[str]:
    """A color for each run."""
    if len(runs) <= len(_COLORS):
        return list(_COLORS[: len(runs)])
    spectrum = mpl.colormaps["turbo"]
    return [to_hex(spectrum(place)) for place in np.linspace(0.06, 0.94, len(runs))]
