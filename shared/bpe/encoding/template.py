"""The ids that a tokenizer puts around a text on request, such as begin- and end-of-text."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint32]
AnyIds = Sequence[int] | npt.NDArray[np.integer[Any]]
"""Ids as they are decoded."""


class Template(NamedTuple):
    """Ids before and after a text, as TemplateProcessing of Hugging Face's tokenizers has them."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    def missing(self, ids: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids to put before and after these: none where they are there already, so that they never double.

        >>> Template(prefix=(1,), suffix=(2,)).missing([1, 7])
        ((), (2,))
        """
        before = () if tuple(ids[: len(self.prefix)]) == self.prefix else self.prefix
        after = () if tuple(ids[len(ids) - len(self.suffix) :]) == self.suffix else self.suffix
        return before, after

    def wrap(self, ids: Ids) -> Ids:
        """Ids with the missing ones around them."""
        before, after = self.missing(ids.tolist())
        return np.concatenate([np.array(before, np.uint32), ids, np.array(after, np.uint32)])
