"""Windows of whole documents, as conversations need them: an answer without its question teaches nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trainer.errors import TrainerError
from trainer.settings.train import DataOrder
from trainer.tokens.packing import Integers, pack
from trainer.tokens.permutation import permute
from trainer.tokens.token_file import Ids, Mask, TokenFile
from trainer.tokens.windows import ShuffledWindows, UniformWindows, Windows, epoch_keys


@dataclass(frozen=True)
class PackedWindows(Windows):
    """Epoch after epoch, in each of which every document is seen once and whole, in windows that come in another order.

    A window holds documents one after the other, each with the end-of-text id after it, as many as fit; the rest is
    padded. The same documents share a window in all epochs, which makes no difference to a model that is trained with
    the document mask. Takes some 100 bytes of memory for each document.

    Raises:
        TrainerError: A document is longer than `length + 1` tokens.
    """

    def __post_init__(self) -> None:
        lengths = np.diff(self._starts)
        if not len(lengths):
            raise TrainerError(f"{self.tokens.path}: no document ends in it; there is nothing to pack")
        too_long = int(np.count_nonzero(lengths > self.length + 1))
        if too_long:
            longest = int(lengths.max()) - 1
            raise TrainerError(
                f"{self.tokens.path}: {too_long:,} of {len(lengths):,} documents do not fit into a context of "
                f"{self.length} tokens, the longest needs {longest}; encode again with --context-length {self.length}, "
                "or raise --context-length of train"
            )

    @property
    def per_epoch(self) -> int:
        """All windows."""
        return len(self._windows)

    @property
    def fill(self) -> float:
        """The share of all positions that are not padding."""
        inputs = len(self._starts) and int(self._starts[-1]) - self.per_epoch
        return inputs / (self.per_epoch * self.length)

    def _tokens_of(self, places: Sequence[tuple[int, int]], length: int) -> Iterator[tuple[Ids, Mask]]:
        if length != self.length:
            raise ValueError("windows of whole documents are not divided")
        for number, _ in places:
            epoch, place = divmod(number, self.per_epoch)
            keys, _ = epoch_keys(self.seed, epoch)
            [window] = permute(np.array([place], np.uint64), self.per_epoch, keys).tolist()
            documents = self._windows[window]
            spans = [(int(self._starts[each]), int(self._starts[each + 1])) for each in documents]
            yield (
                np.concatenate([self.tokens.read(*span) for span in spans]),
                np.concatenate([self.tokens.read_mask(*span) for span in spans]),
            )

    @cached_property
    def _starts(self) -> Integers:
        """Where each document begins in the file, and where the last one ends."""
        ends, place = [np.zeros(1, np.int64)], 0
        for ids in self.tokens.blocks():
            ends.append(np.flatnonzero(ids == self.tokens.manifest.end_of_text_id) + place + 1)
            place += len(ids)
        return np.concatenate(ends)

    @cached_property
    def _windows(self) -> list[list[int]]:
        """The documents of each window."""
        return pack(np.diff(self._starts), self.length + 1, self.seed)


def open_windows(order: DataOrder, tokens: TokenFile, length: int, seed: int) -> Windows:
    """The windows of a token file in one of the orders.

    Raises:
        TrainerError: The file is shorter than a window; or documents are to be whole, and one is longer.
    """
    kinds: dict[DataOrder, type[Windows]] = {
        "epochs": ShuffledWindows,
        "uniform": UniformWindows,
        "packed": PackedWindows,
    }
    return kinds[order](tokens, length, seed)
