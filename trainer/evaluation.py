"""Validation loss and bits per byte."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor, nn

from shared.bpe import Tokenizer
from trainer.device import Device
from trainer.windows import consecutive_windows


@dataclass(frozen=True)
class Evaluation:
    """What a model makes of some tokens.

    Attributes:
        loss: Mean negative log-likelihood of a token, in nats.
        bits_per_byte: Bits to code one byte of the text; unlike the loss, it compares models of different
            vocabularies. None where the targets stand for no bytes.
        tokens: How many targets were scored.
    """

    loss: float
    bits_per_byte: float | None
    tokens: int


def token_byte_lengths(tokenizer: Tokenizer, valid_tokens: Tensor) -> Tensor:
    """How many bytes of text each id stands for: [vocab_size] int64; 0 for special tokens and ids without a token.

    Args:
        tokenizer: The tokenizer.
        valid_tokens: bool [vocab_size], the ids that have a token.
    """
    special = set(tokenizer.special_tokens.values())
    valid = enumerate(valid_tokens.tolist())
    return torch.tensor([len(tokenizer.token_bytes(i)) if ok and i not in special else 0 for i, ok in valid])


@torch.no_grad()
def evaluate(
    model: nn.Module,
    tokens: npt.NDArray[np.integer],
    byte_lengths: Tensor,
    *,
    context_length: int,
    batch_size: int,
    device: Device,
) -> Evaluation:
    """Score every token but the first once, in consecutive windows.

    The result does not depend on `batch_size`, and neither the model's mode nor any random generator is changed. Bits
    per byte leave special tokens out on both sides of the fraction (nanochat's rule): the summed nats of the other
    targets, over ln 2, over the bytes that these stand for.

    Args:
        model: Gives logits [windows, length, vocab_size] for ids [windows, length].
        tokens: 1-D ids, two or more.
        byte_lengths: From `token_byte_lengths`.
        context_length: Length of a window; a token sees at most this much before it.
        batch_size: Windows at once.
        device: Where the model is.
    """
    was_training = model.training
    model.eval()
    nats = text_nats = 0.0
    count = text_bytes = 0
    for inputs, targets in consecutive_windows(tokens, context_length, batch_size):
        with device.autocast():
            logits = model(inputs.to(device.torch_device))
        losses = F.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten().to(device.torch_device), reduction="none"
        ).cpu()
        lengths = byte_lengths[targets.flatten()]
        nats += losses.double().sum().item()
        text_nats += losses[lengths > 0].double().sum().item()
        text_bytes += int(lengths.sum())
        count += len(losses)
    model.train(was_training)
    return Evaluation(
        loss=nats / count, bits_per_byte=text_nats / math.log(2) / text_bytes if text_bytes else None, tokens=count
    )
