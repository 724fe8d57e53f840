"""The tokens that a training step sees: windows in a different order in each epoch, or from random places.

Windows are cut from one long array and may cross from one document into the next; the end-of-text id between them tells
the model so.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from trainer.components.loss import IGNORED
from trainer.errors import TrainerError
from trainer.tokens.permutation import ROUNDS, Numbers, permute, random_numbers
from trainer.tokens.token_file import TokenFile


@dataclass(frozen=True)
class Windows(ABC):
    """An endless sequence of windows, each a pure function of (seed, its index in the sequence).

    Nothing is kept in memory, however large the file, and a run that resumes at some step sees what the uninterrupted
    run would have seen, without any saved state.

    Attributes:
        tokens: The token file.
        length: Tokens of a window.
        seed: The seed, 0 or more.
    """

    tokens: TokenFile
    length: int
    seed: int

    def __post_init__(self) -> None:
        if len(self.tokens) <= self.length:
            raise TrainerError(
                f"{self.tokens.path}: need at least {self.length + 1} tokens, found {len(self.tokens)}; "
                "lower --context-length, or give more text"
            )

    def batch(self, index: int, size: int) -> tuple[Tensor, Tensor]:
        """The windows `index * size` to `(index + 1) * size - 1` of the sequence.

        Returns:
            Inputs and targets, both int64 [size, length]; targets are the inputs shifted by one. A short window is
            padded at its end with the input 0 and the target -100, which is not scored.

        Raises:
            TokenFileError: See `TokenFile.read`.
        """
        inputs = np.zeros((size, self.length), np.int64)
        targets = np.full((size, self.length), IGNORED, np.int64)
        for row, (start, stop) in enumerate(self._places(index * size, size)):
            ids = self.tokens.read(start, stop + 1)
            inputs[row, : stop - start] = ids[:-1]
            targets[row, : stop - start] = ids[1:]
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    @abstractmethod
    def _places(self, first: int, size: int) -> list[tuple[int, int]]:
        """Start and stop of the inputs of `size` windows of the sequence, from window `first` on."""


@dataclass(frozen=True)
class ShuffledWindows(Windows):
    """Epoch after epoch, in each of which every token but the file's first is a target exactly once.

    Each epoch cuts the file at different places and shuffles the windows again.
    """

    @property
    def per_epoch(self) -> int:
        """Windows of an epoch. The first and the last two may be short, so that there is one more than necessary."""
        return -(-self._targets // self.length) + 1

    @property
    def _targets(self) -> int:
        return len(self.tokens) - 1

    def _places(self, first: int, size: int) -> list[tuple[int, int]]:
        places: list[tuple[int, int]] = []
        while len(places) < size:
            epoch, number = divmod(first + len(places), self.per_epoch)
            count = min(size - len(places), self.per_epoch - number)
            keys, offset = _epoch(self.seed, epoch)
            first_length = 1 + offset % max(1, self.length - 1)
            windows = permute(np.arange(number, number + count, dtype=np.uint64), self.per_epoch, keys)
            places += [(self._cut(w, first_length), self._cut(w + 1, first_length)) for w in windows.tolist()]
        return places

    def _cut(self, window: int, first_length: int) -> int:
        """Where a window begins: the first one has `first_length` inputs, and the last two share what is left."""
        if window < self.per_epoch - 1:
            return 0 if window == 0 else first_length + (window - 1) * self.length
        if window == self.per_epoch:
            return self._targets
        return (self._cut(window - 1, first_length) + self._targets + 1) // 2


@dataclass(frozen=True)
class UniformWindows(Windows):
    """Whole windows that begin anywhere in the file with equal probability, drawn with replacement.

    As `get_batch` of nanoGPT's train.py, and CS336 (assignment 1, section 5.1).
    """

    def _places(self, first: int, size: int) -> list[tuple[int, int]]:
        starts = len(self.tokens) - self.length
        # The high half of a 128-bit product: no start is favored by more than starts / 2^64 (Lemire 2019).
        drawn = (number * starts >> 64 for number in random_numbers(first, size, _stream(self.seed)).tolist())
        return [(start, start + self.length) for start in drawn]


def open_windows(order: Literal["epochs", "uniform"], tokens: TokenFile, length: int, seed: int) -> Windows:
    """The windows of a token file in one of the orders.

    Raises:
        TrainerError: the file is shorter than a window.
    """
    return (ShuffledWindows if order == "epochs" else UniformWindows)(tokens, length, seed)


@lru_cache(maxsize=8)
def _stream(seed: int) -> int:
    """Where the random numbers of a seed begin."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])


@lru_cache(maxsize=8)
def _epoch(seed: int, epoch: int) -> tuple[Numbers, int]:
    """An epoch's keys for its order, and a random number for where it is cut."""
    *keys, offset = np.random.SeedSequence((seed, epoch)).generate_state(ROUNDS + 1, np.uint64)
    return np.array(keys), int(offset)
