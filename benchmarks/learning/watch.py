"""Validation on the way of a peer's training, off the clock."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from benchmarks.learning.curves import Point
from benchmarks.learning.shape import CONTEXT_LENGTH
from trainer.compute.device import choose_device
from trainer.evaluation.validation import evaluate, token_byte_lengths
from trainer.tokens.dataset import TrainingData

if TYPE_CHECKING:
    from shared.lm import Transformer

_BATCH_SIZE = 16


class EvaluatedModel:
    """A peer's model in the form that our `evaluate` calls.

    Args:
        hidden: Tokens [B, T] to the normalized residual stream [B, T, d_model].
        output_weight: The output projection, [vocab_size, d_model].
    """

    training = True

    def __init__(self, hidden: Callable[[Tensor], Tensor], output_weight: Tensor) -> None:
        self.hidden = hidden
        self.output_weight = output_weight

    def cap(self, logits: Tensor) -> Tensor:
        """The logits as they are: no contestant caps them."""
        return logits

    def train(self, mode: bool = True) -> None:
        """Change nothing: no contestant has dropout."""

    def eval(self) -> None:
        """Change nothing."""


class Watch:
    """The clock and the curve of one run.

    Args:
        data: Its validation tokens are scored, all of them.
        model: What is trained.
        steps: Of the run.
        evaluations: How many to make, evenly spread; the last at the end.
        tokens_per_step: Trained by a step.
    """

    def __init__(
        self, data: TrainingData, model: EvaluatedModel, *, steps: int, evaluations: int, tokens_per_step: int
    ) -> None:
        assert data.validation is not None
        self._validation = data.validation
        self._byte_lengths = token_byte_lengths(data.tokenizer, torch.ones(data.tokenizer.vocab_size, dtype=torch.bool))
        self._model = model
        self._due = {round(steps * (count + 1) / evaluations) for count in range(evaluations)}
        self._tokens_per_step = tokens_per_step
        self._seconds = 0.0
        self._begin = time.perf_counter()
        self.points: list[Point] = []

    def start(self) -> None:
        """Start the clock."""
        self._begin = time.perf_counter()

    def after(self, step: int) -> None:
        """Evaluate if it is time to; `step` steps are done."""
        if step not in self._due:
            return
        self._seconds += time.perf_counter() - self._begin
        scored = evaluate(
            cast("Transformer", self._model),
            self._validation.blocks(),
            self._byte_lengths,
            context_length=CONTEXT_LENGTH,
            batch_size=_BATCH_SIZE,
            device=choose_device("cpu", "float32"),
        )
        assert scored.bits_per_byte is not None
        self.points.append(Point(step * self._tokens_per_step, self._seconds, scored.loss, scored.bits_per_byte))
        self._begin = time.perf_counter()
