"""Tensors by name from a file of `torch.save` or safetensors. Nothing is unpickled but tensors and plain containers."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
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
    content = _load(path)
    state = next((content[key] for key in _STATE_KEYS if isinstance(content.get(key), Mapping)), content)
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors or not all(isinstance(name, str) for name in tensors):
        raise TrainerError(f"{path}: holds no state dict, neither by itself nor under {', '.join(_STATE_KEYS)}")
    wrapped = next((name for name in tensors if name.startswith(_WRAPPERS)), None)
    if wrapped is None:
        return tensors
    if not strip_wrappers:
        raise UsageError(
            f"{path}: {wrapped} has the prefix of a wrapper (torch.compile or DistributedDataParallel); "
            "pass --strip-wrappers to remove such prefixes"
        )
    return {_without_wrappers(name): tensor for name, tensor in tensors.items()}


def _load(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path):
            pass
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise TrainerError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TrainerError(
            f"{path}: not a file of torch.save with tensors only, or damaged ({reason[:200]})"
        ) from error
    if not isinstance(content, dict):
        raise TrainerError(f"{path}: holds a {type(content).__name__}, expected a dict of tensors")
    return content


def _without_wrappers(name: str) -> str:
    while name.startswith(_WRAPPERS):
        name = name.split(".", 1)[1]
    return name
