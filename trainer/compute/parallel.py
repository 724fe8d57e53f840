"""How several processes train one model: with summed gradients (DDP), or with sharded weights too (FSDP).

FSDP is PyTorch's FSDP2, `fully_shard`: each process holds a shard of every weight, gradient and optimizer state, and
gathers the weights of a block only while it computes.
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
    """Shard the model's weights among the processes, if they train with FSDP; build the optimizer after this."""
    if processes.count == 1 or strategy != "fsdp":
        return
    # These take a second to import, which only runs with FSDP pay.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (processes.count,))
    for block in loss.model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(loss, mesh=mesh)


class ParallelLoss:
    """The loss module as all processes call it: they exchange gradients in the last pass of a step.

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
        """Wrap a module whose weights are the same in all processes, or were sharded with `shard`.

        Args:
            loss: The module.
            processes: Those that train.
            batch_shape: Windows and tokens of a pass.
            device: Where the module is.
            compiled: Whether torch.compile compiles it.
        """
        self._sharded: Any = loss if _is_sharded(loss.model) else None
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
        """Return what `TrainingLoss` returns."""
        return self._forward(*args, **kwargs)  # type: ignore[no-any-return] # nn.Module returns Any

    def gradient_sync(self, *, last: bool) -> AbstractContextManager[object]:
        """The context of one forward and backward pass: the processes exchange gradients in the last one of a step."""
        if self._sharded is not None:
            self._sharded.set_requires_gradient_sync(last)
        return nullcontext() if last or self._replicated is None else self._replicated.no_sync()

    def _settle(self, batch_shape: tuple[int, int], device: torch.device) -> None:
        """Let DDP choose its buckets now: it does so after the first pass, and sums in another order round differently.

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
    """The loss that the settings select: compiled or not, and a `ParallelLoss` for several processes."""
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


def gradient_sync(loss: Callable[..., tuple[Tensor, Tensor]], *, last: bool) -> AbstractContextManager[object]:
    """`ParallelLoss.gradient_sync`; no effect for the loss of one process."""
    return loss.gradient_sync(last=last) if isinstance(loss, ParallelLoss) else nullcontext()


# torch.distributed.checkpoint.state_dict could do this too, but reading an optimizer's state before the first step
# makes it take one, so AdamW's step counter is off by one; and its keys are names, not numbers as for one process.


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor (a DTensor), in all processes at once; any other tensor is returned as it is."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def full_model(model: Transformer) -> Transformer:
    """The model with all its weights in this process: itself, or a copy where they are sharded.

    All processes call this at once; each holds the whole weights until it drops the copy.
    """
    if not _is_sharded(model):
        return model
    with torch.device("meta"):
        copy = Transformer(model.config)
    copy.load_state_dict({name: full_tensor(weight) for name, weight in model.state_dict().items()}, assign=True)
    copy.document_start = model.document_start
    return copy.to(next(model.parameters()).device).eval()


def load_weights(model: Transformer, weights: Mapping[str, Tensor]) -> None:
    """Load whole weights; where the model is sharded, each process takes its shard."""
    model.load_state_dict({name: _shard_like(own, weights[name]) for name, own in model.state_dict().items()})


def full_state(state: Any, *, keep: bool = True) -> Any:
    """An optimizer's state dict with every sharded tensor gathered, on the CPU.

    All processes call this at once.

    Args:
        state: A dict, list or tensor, nested in any way.
        keep: Whether this process wants the result; else it gets None in place of the tensors.
    """
    if isinstance(state, dict):
        return {key: full_state(value, keep=keep) for key, value in state.items()}
    if isinstance(state, list):
        return [full_state(value, keep=keep) for value in state]
    if not hasattr(state, "full_tensor"):
        return state
    tensor = full_tensor(state)
    return tensor.cpu() if keep else None


def shard_state(optimizer: torch.optim.Optimizer) -> None:
    """Shard the whole state that an optimizer has loaded as its parameters are sharded."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = _shard_like(parameter, value)


def _shard_like(own: Tensor, value: Tensor) -> Tensor:
    """This process's shard of a whole tensor, if `own` is sharded. All processes have the whole, so nothing is sent."""
    if not hasattr(own, "full_tensor") or hasattr(value, "full_tensor"):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor  # as in `shard`

    assert isinstance(own, DTensor)
    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements, src_data_rank=None)


def _is_sharded(model: nn.Module) -> bool:
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())
