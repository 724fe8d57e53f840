"""Runs the model on rows of a batch: the only file of the engine that knows torch."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch

from services.inference.engine.request import TokenLogprobs
from services.inference.engine.slot_row import Row
from shared.lm import NO_TOKEN, KVCache, SamplingError, Transformer, sample, top_logprobs

Logits: TypeAlias = torch.Tensor


class Drawn(NamedTuple):
    """A row's next token."""

    token: int
    logprobs: TokenLogprobs | None


class Runner(Protocol):
    """What the batching loop needs of a model."""

    num_slots: int

    def forward(self, slots: list[int], tokens: list[list[int]], positions: list[int]) -> Logits:
        """Run equally many new tokens of each row.

        Returns:
            The logits after the last token of each row, [B, vocab_size].
        """

    def sample(self, rows: Sequence[Row], logits: Logits) -> list[Drawn | Exception]:
        """Draw each row's next token; an exception for a row that has no distribution to draw from."""


class ModelRunner:
    """A Transformer and its KV cache, which is allocated once.

    Args:
        model: In evaluation mode, on its device.
        num_slots: Rows that run at the same time.
        max_length: Tokens of prompt and answer that a row may have.
        valid_tokens: bool [vocab_size], False for ids that must never be drawn.
    """

    def __init__(self, model: Transformer, *, num_slots: int, max_length: int, valid_tokens: torch.Tensor) -> None:
        weight = model.model.embed_tokens.weight
        self.num_slots = num_slots
        self._model = model
        self._device = weight.device
        self._cache = KVCache(model.config, num_slots, max_length, weight.device, weight.dtype)
        self._valid_tokens = valid_tokens.to(weight.device)

    @property
    def cache_bytes(self) -> int:
        """Memory of the KV cache."""
        return self._cache.num_bytes

    def warm_up(self) -> None:
        """Run a token in every row once, so that the first request does not wait for torch to set itself up."""
        slots = list(range(self.num_slots))
        self.forward(slots, [[0]] * self.num_slots, [0] * self.num_slots)

    @torch.inference_mode()
    def forward(self, slots: list[int], tokens: list[list[int]], positions: list[int]) -> Logits:
        """See `Runner.forward`."""
        hidden = self._model.hidden(
            torch.tensor(tokens, device=self._device), self._cache, torch.tensor(slots), torch.tensor(positions)
        )
        return self._model.logits(hidden[:, -1])

    @torch.inference_mode()
    def sample(self, rows: Sequence[Row], logits: Logits) -> list[Drawn | Exception]:
        """See `Runner.sample`."""
        tokens = sample(logits, [row.sampled for row in rows], valid_tokens=self._valid_tokens)
        return [
            self._drawn(row, token, logits[index]) for index, (row, token) in enumerate(zip(rows, tokens, strict=True))
        ]

    def _drawn(self, row: Row, token: int, logits: Logits) -> Drawn | Exception:
        if token == NO_TOKEN:
            return SamplingError("the model's logits are not finite numbers")
        if row.request.num_logprobs is None:
            return Drawn(token, None)
        [(chosen, top)] = top_logprobs(logits[None], [token], row.request.num_logprobs, valid_tokens=self._valid_tokens)
        return Drawn(token, TokenLogprobs(chosen, tuple(top)))
