"""Reading and writing the weights of a model as safetensors, by Hugging Face's names."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from shared.lm.config import ModelConfig
from shared.lm.errors import ModelFolderError
from shared.lm.stored_weights import StoredWeights
from shared.lm.transformer import Transformer
from shared.lm.weight_files import SINGLE_FILE

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def load_weights(
    folder: str | Path,
    config: ModelConfig,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> tuple[Transformer, tuple[str, ...]]:
    """Build a model from the safetensors files of a folder, fully verified.

    Args:
        folder: Holds `model.safetensors`, or `model.safetensors.index.json` and its shards.
        config: The architecture.
        device: Where the model goes.
        dtype: The dtype of the model; None keeps that of the file (the widest one if it mixes them).

    Returns:
        The model in evaluation mode, and notes on what was ignored.

    Raises:
        ModelFolderError: See `StoredWeights`; or a weight is NaN or infinite, before or after conversion.
    """
    with StoredWeights(folder, config) as stored:
        target = dtype or _widest_dtype(stored)
        weights = {name: _read(stored, name, device, target) for name in stored}
    with torch.device("meta"):
        model = Transformer(config)
    model.load_state_dict(weights, assign=True)
    return model.to(device).eval(), stored.notes


def _widest_dtype(stored: StoredWeights) -> torch.dtype:
    """Return the dtype that holds every weight without loss."""
    widest, *others = {_DTYPES[stored.dtype(name)] for name in stored}
    for other in others:
        widest = torch.promote_types(widest, other)
    return widest


def _read(stored: StoredWeights, name: str, device: torch.device | str, dtype: torch.dtype) -> Tensor:
    numbers = torch.from_numpy(stored.raw(name))
    if stored.dtype(name) == "BF16":
        numbers = numbers.view(torch.bfloat16)
    # Always a copy: torch's memory is aligned differently from NumPy's, and the rounding of products may depend on it.
    tensor = numbers.to(device, dtype, copy=True)
    if not tensor.isfinite().all():
        raise stored.not_finite(name, str(dtype), was_finite=bool(numbers.isfinite().all()))
    return tensor


def save_weights(model: Transformer, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write `model.safetensors`; a tied model has one tensor for the embedding and the output.

    Args:
        model: The model.
        folder: Where the file goes.
        dtype: To which weights are rounded; None keeps theirs.

    Raises:
        ModelFolderError: A weight is NaN or infinite, as it is or in that dtype; reading such a file would fail.
    """
    weights = {name: weight.detach().to("cpu", dtype).contiguous() for name, weight in model.state_dict().items()}
    for name, weight in weights.items():
        if not weight.isfinite().all():
            kind = "NaN or infinite weights" if dtype is None else f"weights that are NaN or infinite in {dtype}"
            raise ModelFolderError(f"the model was not saved: {name} holds {kind}")
    save_file(weights, folder / SINGLE_FILE, metadata={"format": "pt"})
    # safetensors makes private files; a model folder is read by other users too, such as those of containers.
    (folder / SINGLE_FILE).chmod(0o644)
