"""The tokens that a training step sees: windows in a different order in each epoch, or from random places.

They are cut from one long array and may cross from one document into the next, which the end-of-text id between them
marks; `packed_windows` has those that cut no document.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from trainer.components.loss import IGNORED
from trainer.errors import TrainerError
from trainer.tokens.permutation import ROUNDS, Numbers, permute, random_numbers
from trainer.tokens.token_file import Ids, Mask, TokenFile


@dataclass(frozen=True)
class Windows(ABC):
    """An endless sequence of windows, each a pure function of (seed, its index in the sequence).

    A run that resumes at some step sees what the uninterrupted run would have seen, without any saved state.

    Attributes:
        tokens: The token file.
        length: Tokens of a window.
        seed: The seed, 0 or more.
    """

    tokens: TokenFile
    length: int
    seed: int

    def batch(self, index: int, size: int) -> tuple[Tensor, Tensor]:
        """The windows `index * size` to `(index + 1) * size - 1` of the sequence.

        Returns:
            Inputs and targets, both int64 [size, length]; targets are the inputs shifted by one, and -100 where the
            loss does not count them: where the token file's mask says so. A short window is padded at its end with the
            input 0 and the target -100.

        Raises:
            TokenFileError: See `TokenFile.read`.
        """
        return self.rows([(number, 0) for number in range(index * size, (index + 1) * size)], self.length)

    def rows(self, places: Sequence[tuple[int, int]], length: int) -> tuple[Tensor, Tensor]:
        """Parts of windows as rows of a batch, as in `batch`.

        Args:
            places: For each row, the number of its window in the sequence, and where in a full window it begins. Short
                windows are divided in the same proportions.
            length: Tokens of a row, at most what is left of a full window.
        """
        inputs = np.zeros((len(places), length), np.int64)
        targets = np.full((len(places), length), IGNORED, np.int64)
        for row, (ids, mask) in enumerate(self._tokens_of(places, length)):
            end = len(ids) - 1
            inputs[row, :end] = ids[:-1]
            targets[row, :end] = ids[1:]
            targets[row, :end][mask[1:] == 0] = IGNORED
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    @property
    @abstractmethod
    def per_epoch(self) -> int:
        """Windows after which a token may be a target again."""

    @abstractmethod
    def _tokens_of(self, places: Sequence[tuple[int, int]], length: int) -> Iterator[tuple[Ids, Mask]]:
        """The tokens of each row, at most `length + 1`, and their mask."""


@dataclass(frozen=True)
class _CutWindows(Windows):
    """Windows that are cut from the file regardless of documents. Nothing is kept in memory, however large it is."""

    def __post_init__(self) -> None:
        if len(self.tokens) <= self.length:
            raise TrainerError(
                f"{self.tokens.path}: need at least {self.length + 1} tokens, found {len(self.tokens)}; "
                "lower --context-length, or give more text"
            )

    def _tokens_of(self, places: Sequence[tuple[int, int]], length: int) -> Iterator[tuple[Ids, Mask]]:
        cuts = self._cuts([number for number, _ in places])
        for (_, offset), (start, stop) in zip(places, cuts, strict=True):
            begin, end = (start + at * (stop - start) // self.length for at in (offset, offset + length))
            yield self.tokens.read(begin, end + 1), self.tokens.read_mask(begin, end + 1)

    @abstractmethod
    def _cuts(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Start and stop of the inputs of windows of the sequence."""


@dataclass(frozen=True)
class ShuffledWindows(_CutWindows):
    """Epoch after epoch, in each of which every token except the file's first is a target exactly once.

    Each epoch cuts the file at different places and shuffles the windows again.
    """

    @property
    def per_epoch(self) -> int:
        """Windows of an epoch. The first and the last two may be short, so that there is one more than necessary."""
        return -(-self._targets // self.length) + 1

    @property
    def _targets(self) -> int:
        return len(self.tokens) - 1

    def _cuts(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        cuts: list[tuple[int, int]] = []
        for epoch, some in groupby(numbers, lambda number: number // self.per_epoch):
            keys, offset = epoch_keys(self.seed, epoch)
            first_length = 1 + offset % max(1, self.length - 1)
            places = np.array([number % self.per_epoch for number in some], np.uint64)
            windows = permute(places, self.per_epoch, keys).tolist()
            cuts += [(self._cut(w, first_length), self._cut(w + 1, first_length)) for w in windows]
        return cuts

    def _cut(self, window: int, first_length: int) -> int:
        """Where a window begins: the first one has `first_length` inputs, and the last two share what is left."""
        if window < self.per_epoch - 1:
            return 0 if window == 0 else first_length + (window - 1) * self.length
        if window == self.per_epoch:
            return self._targets
        return (self._cut(window - 1, first_length) + self._targets + 1) // 2


@dataclass(frozen=True)
class UniformWindows(_CutWindows):
    """Whole windows that begin anywhere in the file with equal probability, drawn with replacement.

    As `get_batch` of nanoGPT's train.py, and CS336 (assignment 1, section 5.1).
    """

    @property
    def per_epoch(self) -> int:
        """There are no epochs."""
        return 1 << 62

    def _cuts(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        starts = len(self.tokens) - self.length
        # The high half of a 128-bit product: no start is favored by more than starts / 2^64 (Lemire 2019).
        stream = _stream(self.seed)
        drawn = (int(random_numbers(number, 1, stream)[0]) * starts >> 64 for number in numbers)
        return [(start, start + self.length) for start in drawn]


@lru_cache(maxsize=8)
def _stream(seed: int) -> int:
    """Where the random numbers of a seed begin."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])


@lru_cache(maxsize=8)
def epoch_keys(seed: int, epoch: int) -> tuple[Numbers, int]:
    """An epoch's keys for its order, and a random number for where it is cut."""
    *keys, offset = np.random.SeedSequence((seed, epoch)).generate_state(ROUNDS + 1, np.uint64)
    return np.array(keys), int(offset)
