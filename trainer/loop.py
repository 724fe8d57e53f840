"""The training loop."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor, nn

from trainer.device import Device
from trainer.errors import DivergedError
from trainer.optimizer import set_learning_rate
from trainer.schedule import scheduled_learning_rate
from trainer.settings import TrainSettings
from trainer.windows import RandomWindows


@dataclass(frozen=True)
class Step:
    """What one optimizer step did.

    Attributes:
        number: Steps done so far, this one included.
        loss: Mean nats a token over the step's whole batch, before the update.
        learning_rate: The rate used.
        grad_norm: Global norm of the gradient before clipping.
        seconds: Wall time.
    """

    number: int
    loss: float
    learning_rate: float
    grad_norm: float
    seconds: float


def accumulate_gradients(
    model: Callable[[Tensor], Tensor], inputs: Tensor, targets: Tensor, *, batch_size: int, device: Device
) -> Tensor:
    """Add the gradient of the mean loss over all targets, `batch_size` windows at a time.

    Each pass is weighted by its share of the tokens, so that the gradient is that of one large batch.

    Args:
        model: Gives logits for ids [windows, length].
        inputs: [windows, length].
        targets: [windows, length].
        batch_size: Windows for each pass.
        device: Where the model is.

    Returns:
        The mean loss, detached.
    """
    total = torch.zeros((), device=device.torch_device)
    for first in range(0, len(inputs), batch_size):
        some_inputs, some_targets = inputs[first : first + batch_size], targets[first : first + batch_size]
        with device.autocast():
            logits = model(some_inputs.to(device.torch_device))
        nats = F.cross_entropy(
            logits.float().flatten(0, 1), some_targets.flatten().to(device.torch_device), reduction="sum"
        )
        loss = nats / targets.numel()
        loss.backward()  # type: ignore[no-untyped-call] # torch gives it no types
        total += loss.detach()
    return total


def training_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    windows: RandomWindows,
    settings: TrainSettings,
    device: Device,
    *,
    start: int,
    forward: Callable[[Tensor], Tensor],
) -> Iterator[Step]:
    """Take the optimizer steps `start` to `max_steps`, one for each item drawn.

    Args:
        model: The model whose weights are trained.
        optimizer: Over its parameters.
        windows: The training tokens.
        settings: The run's settings.
        device: Where the model is.
        start: Steps done before.
        forward: The model, or its compiled form.

    Raises:
        DivergedError: the loss or the gradient is not a finite number; the weights are still those of the step before.
    """
    o = settings.optimization
    max_norm = o.clip_grad_norm or float("inf")
    for index in range(start, o.max_steps):
        begin = time.perf_counter()
        rate = scheduled_learning_rate(index, o)
        inputs, targets = windows.batch(index, settings.total_batch_size)
        loss = accumulate_gradients(forward, inputs, targets, batch_size=o.batch_size, device=device).item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm).item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise DivergedError(
                f"training diverged at step {index + 1}: loss {loss}, gradient norm {norm}, learning rate {rate:.2g}; "
                "a lower --learning-rate or more --warmup-steps usually helps"
            )
        set_learning_rate(optimizer, rate)
        optimizer.step()
        optimizer.zero_grad()
        yield Step(index + 1, loss, rate, norm, time.perf_counter() - begin)
