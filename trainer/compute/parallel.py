"""How several processes train one model: its gradients summed (DDP), or its weights divided too (FSDP).

FSDP is PyTorch's second, `fully_shard`: each process keeps its part of every weight, gradient and optimizer state, and
the weights of a block come together only while it computes.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from shared.lm import Transformer
from trainer.components.loss import IGNORED, TrainingLoss
from trainer.compute.processes import Processes
from trainer.settings.train import TrainSettings

Strategy = Literal["ddp", "fsdp"]

# The model's buffers never change, so DDP need not send them around in each pass. torch 2.13 renamed the argument.
_DDP_ARGUMENTS = inspect.signature(DistributedDataParallel).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _DDP_ARGUMENTS else "broadcast_buffers"


def shard(loss: TrainingLoss, processes: Processes, strategy: Strategy, device: torch.device) -> None:
    """Divide the model's weights among the processes, where they train with FSDP; the optimizer comes after this."""
    if processes.count == 1 or strategy != "fsdp":
        return
    # These take a second to import, which a run without them need not wait for.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (processes.count,))
    for block in loss.model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(loss, mesh=mesh)


class ParallelLoss:
    """The loss module as all processes call it: their gradients come together in the last pass of a step.

    Gradients are averaged over the processes, so each must scale its loss by their number.
    """

    def __init__(
        self,
        loss: TrainingLoss,
        processes: Processes,
        *,
        batch_shape: tuple[int, int],
        device: torch.device,
        compiled: bool = False,
    ) -> None:
        """Wrap a module whose weights are the same in all processes, or were divided with `shard`.

        Args:
            loss: The module.
            processes: Those that train.
            batch_shape: Windows and tokens of a pass.
            device: Where the module is.
            compiled: Whether torch.compile compiles it.
        """
        self._sharded: Any = loss if _is_divided(loss.model) else None
        self._replicated: DistributedDataParallel | None = None
        forward: Any = torch.compile(loss) if compiled else loss
        if processes.count > 1 and self._sharded is None:
            arguments: dict[str, Any] = {_SYNC_BUFFERS: False}
            if device.type == "cuda":
                arguments["device_ids"] = [device]
            forward = self._replicated = DistributedDataParallel(forward, **arguments)
            self._settle(batch_shape, device)
        self._forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """What `TrainingLoss` gives."""
        return self._forward(*args, **kwargs)  # type: ignore[no-any-return] # nn.Module returns Any

    def gathering(self, *, last: bool) -> AbstractContextManager[object]:
        """The context of one pass, backward too: in the last of a step the processes' gradients come together."""
        if self._sharded is not None:
            self._sharded.set_requires_gradient_sync(last)
        return nullcontext() if last or self._replicated is None else self._replicated.no_sync()

    def _settle(self, batch_shape: tuple[int, int], device: torch.device) -> None:
        """Let DDP choose its buckets now: it does so after the first pass, and sums of another order round otherwise.

        So a resumed run, whose first pass is the run's hundredth, gives the same bits.
        """
        assert self._replicated is not None
        nothing = torch.zeros(batch_shape, dtype=torch.int64, device=device)
        for _ in range(2):  # buckets are rebuilt at the start of the second
            loss, _ = self._replicated(nothing, torch.full_like(nothing, IGNORED), scale=0.0)
            loss.backward()
        self._replicated.zero_grad()


def parallel_loss(
    loss: TrainingLoss, settings: TrainSettings, processes: Processes, device: torch.device
) -> Callable[..., tuple[Tensor, Tensor]]:
    """The loss as the settings ask for it: compiled, and for several processes a `ParallelLoss`."""
    if processes.count == 1:
        return torch.compile(loss) if settings.machine.compile else loss
    windows = min(settings.optimization.batch_size, -(-settings.total_batch_size // processes.count))
    return ParallelLoss(
        loss,
        processes,
        batch_shape=(windows, settings.model.context_length),
        device=device,
        compiled=settings.machine.compile,
    )


def gathering(loss: Callable[..., tuple[Tensor, Tensor]], *, last: bool) -> AbstractContextManager[object]:
    """`ParallelLoss.gathering`; nothing for the loss of one process."""
    return loss.gathering(last=last) if isinstance(loss, ParallelLoss) else nullcontext()


def whole(tensor: Tensor) -> Tensor:
    """A divided tensor (a DTensor) put together, in all processes at once; any other as it is."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def whole_model(model: Transformer) -> Transformer:
    """The model with its weights in this process: itself, or a copy where they are divided.

    All processes call this at once; each has the whole weights until it drops the copy.
    """
    if not _is_divided(model):
        return model
    with torch.device("meta"):
        copy = Transformer(model.config)
    copy.load_state_dict({name: whole(weight) for name, weight in model.state_dict().items()}, assign=True)
    copy.document_start = model.document_start
    return copy.to(next(model.parameters()).device).eval()


def load_weights(model: Transformer, weights: Mapping[str, Tensor]) -> None:
    """Give the model these whole weights, where its own are divided each process taking its part."""
    if not _is_divided(model):
        model.load_state_dict(weights)
        return
    from torch.distributed.tensor import DTensor, distribute_tensor  # as in `shard`

    parts = {
        name: distribute_tensor(weights[name].to(own.device), own.device_mesh, own.placements, src_data_rank=None)
        for name, own in model.state_dict().items()
        if isinstance(own, DTensor)
    }
    model.load_state_dict({**weights, **parts})


def whole_state(state: Any, *, keep: bool = True) -> Any:
    """An optimizer's state dict with every divided tensor put together, on the CPU.

    All processes call this at once.

    Args:
        state: A dict, list or tensor, nested in any way.
        keep: Whether this process wants the result; else it gets None in place of the tensors.
    """
    if isinstance(state, dict):
        return {key: whole_state(value, keep=keep) for key, value in state.items()}
    if isinstance(state, list):
        return [whole_state(value, keep=keep) for value in state]
    if not hasattr(state, "full_tensor"):
        return state
    tensor = whole(state)
    return tensor.cpu() if keep else None


def divide_state(optimizer: torch.optim.Optimizer) -> None:
    """Divide what an optimizer loaded whole as its parameters are divided, each process taking its part."""
    if not any(hasattr(parameter, "full_tensor") for parameter in optimizer.state):
        return
    from torch.distributed.tensor import DTensor, distribute_tensor  # as in `shard`

    for parameter, state in optimizer.state.items():
        assert isinstance(parameter, DTensor)
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and not isinstance(value, DTensor):
                # Every process has read the whole, so nothing needs to be sent.
                state[name] = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _is_divided(model: nn.Module) -> bool:
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())
