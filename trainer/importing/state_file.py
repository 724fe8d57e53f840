"""Tensors by name from a file of `torch.save` or safetensors. Nothing is unpickled but tensors and plain containers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from shared.system.regular_file import open_regular
from trainer.errors import TrainerError, UsageError

_WRAPPERS = ("_orig_mod.", "module.")
_STATE_KEYS = ("model", "model_state_dict", "model_state", "state_dict")


def read_state(path: Path, *, strip_wrappers: bool) -> dict[str, Tensor]:
    """Read the tensors of a model.

    Args:
        path: A file of `torch.save`, which holds a state dict, or a dict with one under "model" and the like, as
            checkpoints have it; or a safetensors file.
        strip_wrappers: Whether to remove the prefixes of torch.compile and DistributedDataParallel.

    Raises:
        TrainerError: The file cannot be read, or holds something else.
        UsageError: The names have such prefixes, and `strip_wrappers` is false.
    """
    content = load_checkpoint(path)
    state = next((content[key] for key in _STATE_KEYS if isinstance(content.get(key), Mapping)), content)
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors or not all(isinstance(name, str) for name in tensors):
        raise TrainerError(f"{path}: holds no state dict, neither by itself nor under {', '.join(_STATE_KEYS)}")
    for name, tensor in tensors.items():
        _check_stored(path, name, tensor)
    wrapped = next((name for name in tensors if name.startswith(_WRAPPERS)), None)
    if wrapped is None:
        return tensors
    if not strip_wrappers:
        raise UsageError(
            f"{path}: {wrapped} has the prefix of a wrapper (torch.compile or DistributedDataParallel); "
            "pass --strip-wrappers to remove such prefixes"
        )
    return {_without_wrappers(name): tensor for name, tensor in tensors.items()}


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a file of `torch.save` with tensors and plain containers only, or of safetensors.

    Tensors of a torch file stay in the file until they are used.

    Raises:
        TrainerError: The file cannot be read, or holds something else.
    """
    try:
        with open_regular(path) as file:
            is_archive = file.read(4) == b"PK\x03\x04"
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except OSError as error:
        raise TrainerError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # torch's readers raise errors of every kind for damaged files
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TrainerError(
            f"{path}: not a file of torch.save with tensors only, or damaged ({reason[:200]})"
        ) from error
    if not isinstance(content, dict):
        raise TrainerError(f"{path}: holds a {type(content).__name__}, expected a dict of tensors")
    return content


def _check_stored(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse tensors that claim more numbers than the file holds: copying them would take any amount of memory."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise TrainerError(f"{path}: {name} is a tensor of another kind than numbers in rows")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise TrainerError(f"{path}: {name} claims the shape {list(tensor.shape)}, but the file holds fewer numbers")


def _without_wrappers(name: str) -> str:
    while name.startswith(_WRAPPERS):
        name = name.split(".", 1)[1]
    return name
