"""The windows of each step where batch or context grow in the course of a run."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from trainer.settings.stages import Stage, StepShapes
from trainer.tokens.windows import Windows


class _Part(NamedTuple):
    """The windows of a stage.

    Attributes:
        stage: The stage.
        first: The first full window of the sequence that is for it.
        pieces: Windows of its length that a full window is cut into.
        rows: Its own windows in all; None where it has no end.
    """

    stage: Stage
    first: int
    pieces: int
    rows: int | None


@dataclass(frozen=True)
class StagedWindows:
    """The batches of a run whose steps differ in shape, from one sequence of full windows.

    Each stage takes the next full windows of the sequence, as many as it needs. A stage with shorter windows cuts each
    into as many pieces as fit, one behind the other from its start; a remainder shorter than a piece is left out.
    Within an epoch, it takes the first piece of each of its windows, then the second of each, and so on, so that a
    batch holds pieces of different places of the text. So no token is a target twice in an epoch, and every batch is a
    function of the seed and its number alone. At most the remainders, and less than one full window for each stage, are
    left out of an epoch; the next epochs are cut at other places.

    Li et al. 2022 (arXiv 2108.06084) truncate full windows instead, and leave out the rest of each.

    Attributes:
        windows: Full windows.
        shapes: The shapes of the steps.
    """

    windows: Windows
    shapes: StepShapes

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step, from 0, both int64 [windows, length]; as `Windows.batch` gives them."""
        index = self.shapes.index(step)
        stage = self.shapes.stages[index]
        if len(self.shapes.stages) == 1:
            return self.windows.batch(step, stage.windows)
        part = self._parts[index]
        begin = (step - stage.first) * stage.windows
        return self.windows.rows([self._place(part, row) for row in range(begin, begin + stage.windows)], stage.length)

    @cached_property
    def _parts(self) -> list[_Part]:
        parts: list[_Part] = []
        first = 0
        stages = self.shapes.stages
        for stage, end in zip(stages, [*(stage.first for stage in stages[1:]), None], strict=True):
            pieces = self.windows.length // stage.length
            rows = None if end is None else (end - stage.first) * stage.windows
            parts.append(_Part(stage, first, pieces, rows))
            first += -(-(rows or 0) // pieces)
        return parts

    def _place(self, part: _Part, row: int) -> tuple[int, int]:
        """The full window of a stage's row, and where in it the row begins."""
        per_epoch = self.windows.per_epoch
        left = per_epoch - part.first % per_epoch  # windows until the first epoch ends
        begin, window = 0, part.first
        if row >= left * part.pieces:
            epochs = (row - left * part.pieces) // (per_epoch * part.pieces)
            begin, window = (left + epochs * per_epoch) * part.pieces, part.first + left + epochs * per_epoch
        available = (per_epoch - window % per_epoch) * part.pieces
        rows = available if part.rows is None else min(available, part.rows - begin)
        piece, nth = divmod(row - begin, -(-rows // part.pieces))
        return window + nth, piece * part.stage.length
