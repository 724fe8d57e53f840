"""Which tokens a step sees: random windows for training, consecutive ones for evaluation.

Windows are cut from one long array and may cross from one document into the next; the end-of-text id between them tells
the model so.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.errors import TrainerError
from trainer.tokenfile import TokenFile


@dataclass(frozen=True)
class RandomWindows:
    """Windows at random places, with replacement, the places a pure function of (seed, step).

    So a run that resumes at some step sees exactly what the uninterrupted run would have seen, with no state to save.

    Attributes:
        tokens: The token file.
        length: Tokens of a window; a window also needs the one token that follows, its last target.
        seed: The seed.
    """

    tokens: TokenFile
    length: int
    seed: int

    def __post_init__(self) -> None:
        if len(self.tokens.tokens) <= self.length:
            raise TrainerError(
                f"{self.tokens.path}: {len(self.tokens.tokens)} tokens are too few for one window of context_length "
                f"{self.length} and its last target; give more text or a context_length below {len(self.tokens.tokens)}"
            )

    def batch(self, step: int, size: int) -> tuple[Tensor, Tensor]:
        """The `size` windows of a step.

        Returns:
            Inputs and targets, both [size, length] int64; targets are the inputs one position on.
        """
        # Philox is a counter-based generator: the step is its counter, so no step's draw depends on another's.
        generator = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, 0, step]))
        starts = generator.integers(0, len(self.tokens.tokens) - self.length, size=size)
        # A new map for each batch: pages of an old one stay in this process's memory as long as it is mapped.
        tokens = np.memmap(self.tokens.path, dtype=self.tokens.tokens.dtype, mode="r")
        return _stack([tokens[start : start + self.length + 1] for start in starts])


def consecutive_windows(tokens: npt.NDArray[np.integer], length: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of up to `size` windows that together have every token but the first as a target once.

    The last window is as short as what is left, in a batch of its own: nothing is padded.

    Yields:
        Inputs and targets, both [windows, up to length] int64.
    """
    full = (len(tokens) - 1) // length if len(tokens) else 0
    for first in range(0, full, size):
        starts = range(first * length, min(first + size, full) * length, length)
        yield _stack([tokens[start : start + length + 1] for start in starts])
    if len(tokens) - full * length > 1:
        yield _stack([tokens[full * length :]])


def _stack(windows: list[npt.NDArray[np.integer]]) -> tuple[Tensor, Tensor]:
    stacked = torch.from_numpy(np.stack(windows).astype(np.int64))
    return stacked[:, :-1], stacked[:, 1:]
