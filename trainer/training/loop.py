"""The training loop."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shared.system.stages import Stage, no_stage
from trainer.checkpoints.run_state import RunState
from trainer.components.loss import IGNORED
from trainer.components.optimizer import set_learning_rate
from trainer.components.schedule import scheduled_learning_rate
from trainer.compute.device import Device
from trainer.compute.parallel import full_tensor, gradient_sync
from trainer.compute.processes import ONE_PROCESS, Processes
from trainer.console.signals import StopRequest
from trainer.errors import DivergedError
from trainer.settings.train import TrainSettings
from trainer.tokens.staged_windows import StagedWindows
from trainer.tokens.token_file import TokenFileError
from trainer.tokens.windows import Windows
from trainer.training.divergence import divergence, remember

Loss = Callable[..., tuple[Tensor, Tensor]]
"""`TrainingLoss`, or its compiled or wrapped form."""

FORWARD_BACKWARD = "forward and backward"
"""The stage of a forward and backward pass, around the stages of its parts."""


@dataclass(frozen=True)
class Step:
    """What one optimizer step did.

    Attributes:
        number: Steps done so far, this one included.
        loss: Mean nats per token over the step's whole batch, before the update.
        learning_rate: The rate used.
        grad_norm: Global norm of the gradient before clipping.
        tokens: Of the whole batch.
        seconds: Wall time.
        fault: Why the update was skipped, if it was.
        stop_signal: The signal to stop, if any process of the run has received one.
    """

    number: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens: int
    seconds: float
    fault: str | None = None
    stop_signal: int | None = None


def accumulate_gradients(
    loss_function: Loss,
    inputs: Tensor,
    targets: Tensor,
    *,
    batch_size: int,
    device: Device,
    z_loss: float = 0.0,
    processes: Processes = ONE_PROCESS,
    stage: Stage = no_stage,
) -> Tensor:
    """Add the gradient of the mean loss over all scored targets, `batch_size` windows at a time.

    Each target has the same weight in every pass, so the gradient equals that of one large batch.

    Args:
        loss_function: Gives the loss of windows.
        inputs: int64 [windows, length].
        targets: int64 [windows, length]; -100 is not scored.
        batch_size: Windows for each pass.
        device: Where the model is.
        z_loss: See `next_token_loss`.
        processes: Those that call this with the same windows; each takes its share.
        stage: Called for each part of the work.

    Returns:
        This process's part of the mean cross-entropy, detached; 0 where no target is scored.
    """
    # The gradients of several processes are averaged, hence the factor of their number.
    # A tensor, since torch.compile would compile again for another number, where a window is short.
    scale = torch.tensor(processes.count / max(1, int((targets != IGNORED).sum())))
    inputs, targets = processes.share(inputs, targets)
    # In float64, where there is one: in float32 a dozen passes put the loss off by more than 1e-6.
    exact = torch.float32 if device.torch_device.type == "mps" else torch.float64
    total = torch.zeros((), device=device.torch_device, dtype=exact)
    for first in range(0, len(inputs), batch_size):
        with stage(FORWARD_BACKWARD), gradient_sync(loss_function, last=first + batch_size >= len(inputs)):
            with stage("data"):
                some = [each[first : first + batch_size].to(device.torch_device) for each in (inputs, targets)]
            tokens = some[0].numel()
            with stage("forward", tokens), device.autocast():
                loss, nats = loss_function(*some, scale=scale, z_loss=z_loss)
            with stage("backward", tokens):
                loss.backward()  # type: ignore[no-untyped-call] # torch gives it no types
        total += nats
    return (total / processes.count).float()


def training_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    windows: Windows,
    settings: TrainSettings,
    device: Device,
    *,
    state: RunState,
    loss_function: Loss,
    processes: Processes = ONE_PROCESS,
    stop: StopRequest | None = None,
    stage: Stage = no_stage,
) -> Iterator[Step]:
    """Take the optimizer steps from `state.step` to `max_steps`, one for each item, and update the state.

    Args:
        model: The model whose weights are trained.
        optimizer: Over its parameters.
        windows: The training tokens.
        settings: The run's settings.
        device: Where the model is.
        state: The progress of the run.
        loss_function: Gives the model's loss.
        processes: Those that train together.
        stop: The signals that this process receives.
        stage: Called for each part of the work.

    Raises:
        DivergedError: a step's loss or gradient is NaN or infinite, or its loss a spike, and the settings do not say to
            skip its update, or too many were skipped in a row. The weights are still those of the step before.
        TokenFileError: the windows of the next step cannot be read; everything else is as after the step before.
    """
    o, guard = settings.optimization, settings.divergence
    max_norm = o.clip_grad_norm or float("inf")
    batches, full = StagedWindows(windows, settings.shapes), settings.model.context_length
    batch = _read_ahead(batches, state)
    while state.step < o.max_steps:
        begin = time.perf_counter()
        processes.seed_step(o.seed, state.step)
        inputs, targets = batch.result()
        loss = accumulate_gradients(
            loss_function,
            inputs,
            targets,
            batch_size=o.batch_size * (full // inputs.shape[1]),  # as many tokens at once, in shorter windows
            device=device,
            z_loss=o.z_loss,
            processes=processes,
            stage=stage,
        )
        with stage("clipping"):
            norm = full_tensor(nn.utils.clip_grad_norm_(model.parameters(), max_norm)) / processes.count
        rate = state.learning_rate_scale * scheduled_learning_rate(state.step, o)
        state.step += 1
        counted = int((targets != IGNORED).sum())
        state.tokens += inputs.numel()
        state.counted_tokens += counted
        with stage("data"):
            batch = _read_ahead(batches, state)  # while a GPU is still computing
        with stage("synchronization"):
            (loss_value, norm_value), stop_signal = processes.agree(torch.stack([loss, norm]).tolist(), stop)
        spike_threshold = guard.spike_threshold if counted else 0  # the loss of no target says nothing
        fault = divergence(loss_value, norm_value, state.recent_losses, spike_threshold)
        if fault is None:
            set_learning_rate(optimizer, rate)
            if o.learning_rate:  # an update of 0 would still turn -0.0 into 0.0
                with stage("optimizer"):
                    optimizer.step()
            if counted:
                remember(loss_value, state.recent_losses)
            state.skips_in_a_row = 0
        else:
            state.skips_in_a_row += 1
        optimizer.zero_grad()
        if fault is not None and (guard.on_divergence != "skip" or state.skips_in_a_row > guard.max_skips):
            raise DivergedError(_describe(fault, rate, state), state.step)
        seconds = time.perf_counter() - begin
        yield Step(state.step, loss_value, rate, norm_value, inputs.numel(), seconds, fault, stop_signal)


def _read_ahead(batches: StagedWindows, state: RunState) -> Future[tuple[Tensor, Tensor]]:
    """The windows of the step after `state.step`; an error in reading is raised when the result is used.

    By then the step before is finished, and can be saved.
    """
    batch: Future[tuple[Tensor, Tensor]] = Future()
    try:
        batch.set_result(batches.batch(state.step + state.batches_left_out))
    except TokenFileError as error:
        batch.set_exception(error)
    return batch


def _describe(fault: str, rate: float, state: RunState) -> str:
    again = f", {state.skips_in_a_row} steps in a row" if state.skips_in_a_row > 1 else ""
    return f"training diverged at step {state.step}: {fault}, learning rate {rate:.2g}{again}"
