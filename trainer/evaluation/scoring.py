"""Scoring windows of tokens with a model."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor

from shared.lm import Transformer
from shared.lm.linear import fast_product, has_fast_product
from trainer.components.loss import IGNORED
from trainer.compute.device import Device
from trainer.evaluation.windows import Window

# Inputs of a batch where its size is not given: more are no faster, and fresh memory for them costs time on CPUs.
_BATCH_TOKENS_ON_CPU = 1024
_BATCH_TOKENS_ELSEWHERE = 32768

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

# Rows of logits computed at once: on a CPU they fit into the cache, GPUs need many to be fully used.
_ROWS_ON_CPU = 256
_ROWS_ELSEWHERE = 4096


def default_batch_tokens(device: Device) -> int:
    """How many inputs a batch has where its size is not given."""
    return _BATCH_TOKENS_ON_CPU if device.torch_device.type == "cpu" else _BATCH_TOKENS_ELSEWHERE


@dataclass(frozen=True)
class Evaluation:
    """The scores of some tokens as sums, which add up over parts of a text.

    Attributes:
        nats: Negative log-likelihood of the scored tokens.
        tokens: The number of scored tokens.
        text_nats: Negative log-likelihood of those that stand for bytes of text, without special tokens.
        bytes: The number of these bytes.
    """

    nats: float = 0.0
    tokens: int = 0
    text_nats: float = 0.0
    bytes: int = 0

    def __add__(self, other: "Evaluation") -> "Evaluation":
        return Evaluation(
            self.nats + other.nats,
            self.tokens + other.tokens,
            self.text_nats + other.text_nats,
            self.bytes + other.bytes,
        )

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood of a token, in nats; NaN where there is none."""
        return self.nats / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """Bits to code one byte of the text; unlike the loss, it compares models of different vocabularies.

        Special tokens are left out on both sides of the fraction (nanochat's rule). None where no bytes were scored.
        """
        return self.text_nats / math.log(2) / self.bytes if self.bytes else None


@dataclass(frozen=True)
class TokenScores:
    """What a model makes of the scored targets of some windows, one by one.

    Attributes:
        nats: float64 [N], their negative log-likelihoods.
        targets: int64 [N], their ids.
        windows: int64 [N], the index of the window that each is in.
        positions: int64 [N], the index of each in its window.
    """

    nats: Floats
    targets: Integers
    windows: Integers
    positions: Integers


@torch.no_grad()
def score_tokens(model: Transformer, windows: Sequence[Window], *, device: Device) -> TokenScores:
    """Score the targets of windows.

    A window's scores do not depend on the other windows: shorter ones are padded on the right, which causal attention
    never sees.

    Args:
        model: In evaluation mode.
        windows: One or more.
        device: Where the model is.
    """
    inputs, targets = _stack(windows)
    scored = targets != IGNORED
    picked = targets[scored]
    with device.autocast():
        hidden = model.hidden(inputs.to(device.torch_device))
        nats = _token_nats(hidden[scored.to(device.torch_device)], model, picked.to(device.torch_device))
    rows, positions = scored.nonzero().numpy().T
    return TokenScores(nats.double().cpu().numpy(), picked.numpy(), rows, positions)


def score(
    model: Transformer, windows: Sequence[Window], byte_lengths: Tensor, *, device: Device
) -> dict[str, Evaluation]:
    """What the model makes of the scored targets, by the source that they count for.

    Args:
        model: As in `score_tokens`.
        windows: As in `score_tokens`.
        byte_lengths: int64 [vocab_size], the number of bytes that each id stands for.
        device: As in `score_tokens`.
    """
    scores = score_tokens(model, windows, device=device)
    lengths = byte_lengths.numpy()[scores.targets]
    columns = (scores.nats, np.ones(len(lengths)), np.where(lengths > 0, scores.nats, 0.0), lengths)
    sums = zip(*(np.bincount(scores.windows, column, len(windows)).tolist() for column in columns), strict=True)
    of_sources: dict[str, Evaluation] = {}
    for window, (of_all, tokens, of_text, num_bytes) in zip(windows, sums, strict=True):
        part = Evaluation(of_all, int(tokens), of_text, int(num_bytes))
        of_sources[window.source] = of_sources.get(window.source, Evaluation()) + part
    return of_sources


def _stack(windows: Sequence[Window]) -> tuple[Tensor, Tensor]:
    """Inputs and targets, both int64 [windows, longest]; a target that is not scored is -100."""
    longest = max(len(window.tokens) for window in windows) - 1
    inputs = np.zeros((len(windows), longest), np.int64)
    targets = np.full((len(windows), longest), IGNORED)
    for row, (tokens, scored, _, mask) in enumerate(windows):
        end = len(tokens) - 1
        inputs[row, :end] = tokens[:-1]
        targets[row, end - scored : end] = tokens[len(tokens) - scored :]
        if mask is not None:
            targets[row, :end][mask[1:] == 0] = IGNORED
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def logits_of(hidden: Tensor, model: Transformer, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits of hidden [N, d_model] in float32, as many rows at once as is fast, [rows, vocab_size]; their targets."""
    rows = _ROWS_ON_CPU if hidden.device.type == "cpu" else _ROWS_ELSEWHERE
    for some, of in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        yield model.cap(_product(some, model.output_weight).float()), of


def _token_nats(hidden: Tensor, model: Transformer, targets: Tensor) -> Tensor:
    """Negative log-likelihood of targets [N] given hidden [N, d_model]."""
    return torch.cat([F.cross_entropy(some, of, reduction="none") for some, of in logits_of(hidden, model, targets)])


def _product(hidden: Tensor, weight: Tensor) -> Tensor:
    return fast_product(hidden, weight) if has_fast_product(hidden, weight) else F.linear(hidden, weight)
