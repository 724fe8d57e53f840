"""Validation loss and bits per byte."""

from collections.abc import Iterable
from itertools import islice

import torch
from torch import Tensor

from shared.bpe import Tokenizer
from shared.lm import Transformer
from trainer.compute.device import Device
from trainer.compute.processes import ONE_PROCESS, Processes
from trainer.evaluation.scoring import Evaluation, score
from trainer.evaluation.windows import Ids, Window, batches, consecutive_windows

__all__ = ["Evaluation", "evaluate", "evaluate_windows", "token_byte_lengths"]


def token_byte_lengths(tokenizer: Tokenizer, valid_tokens: Tensor) -> Tensor:
    """How many bytes of text each id stands for: [vocab_size] int64; 0 for special tokens and ids without a token.

    Args:
        tokenizer: The tokenizer.
        valid_tokens: bool [vocab_size], the ids that have a token.
    """
    special = set(tokenizer.special_tokens.values())
    valid = enumerate(valid_tokens.tolist())
    return torch.tensor([len(tokenizer.token_bytes(i)) if ok and i not in special else 0 for i, ok in valid])


def evaluate(
    model: Transformer,
    blocks: Iterable[Ids],
    byte_lengths: Tensor,
    *,
    context_length: int,
    batch_size: int,
    device: Device,
    begin_id: int | None = None,
    processes: Processes = ONE_PROCESS,
) -> Evaluation:
    """Score every token once, in consecutive windows.

    Args:
        model: The model.
        blocks: The ids, 1-D, a part at a time.
        byte_lengths: From `token_byte_lengths`.
        context_length: Length of a window; a token is predicted from at most so many.
        batch_size: Windows at once.
        device: Where the model is.
        begin_id: The id before the first token; without one, scoring starts at the second token.
        processes: As for `evaluate_windows`.
    """
    windows = consecutive_windows(blocks, context_length, begin_id=begin_id)
    return evaluate_windows(model, windows, byte_lengths, batch_size=batch_size, device=device, processes=processes)


def evaluate_windows(
    model: Transformer,
    windows: Iterable[Window],
    byte_lengths: Tensor,
    *,
    batch_size: int,
    device: Device,
    processes: Processes = ONE_PROCESS,
) -> Evaluation:
    """Score windows, divided among the processes.

    The result does not depend on `batch_size`; the model's mode and the random generators stay as they are.

    Args:
        model: The model.
        windows: The windows.
        byte_lengths: From `token_byte_lengths`.
        batch_size: Windows at once.
        device: Where the model is.
        processes: The processes that call this together, each with the whole model; all get the same result.
    """
    was_training = model.training
    model.eval()
    total = Evaluation()
    try:
        every = batches(windows, batch_size=batch_size, batch_tokens=0)
        for batch in islice(every, processes.rank, None, processes.count):
            total += score(model, batch, byte_lengths, device=device)[""]
    finally:
        model.train(was_training)
    nats, num_tokens, text_nats, num_bytes = processes.all_reduce(
        [total.nats, total.tokens, total.text_nats, total.bytes]
    )
    return Evaluation(nats, int(num_tokens), text_nats, int(num_bytes))
