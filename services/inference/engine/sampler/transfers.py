"""Copies between host and device through page-locked memory, so that only `to_host` waits."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to a device without waiting; the array may be changed at once."""
    tensor = torch.from_numpy(array)
    # torch keeps page-locked memory until the copy is done, and then uses it again.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.clone()


def copy_to_device(array: NDArray[Any], target: Tensor) -> None:
    """Copy an array into a tensor without waiting; the array may be changed at once."""
    tensor = torch.from_numpy(array)
    target.copy_(tensor.pin_memory() if target.device.type == "cuda" else tensor, non_blocking=True)


def to_host(tensor: Tensor) -> NDArray[Any]:
    """Wait for a tensor, and for all that was started before."""
    if tensor.device.type != "cuda":
        return tensor.clone().numpy()
    host = torch.empty(tensor.shape, dtype=tensor.dtype).pin_memory()
    host.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(tensor.device))
    event.synchronize()
    return host.numpy()
