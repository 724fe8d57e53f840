"""The weights of a model as torch's tensors, read and written: safetensors under Hugging Face's names."""

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
    """Build the model that a folder's safetensors files hold; everything is verified, and nothing is guessed.

    Args:
        folder: Holds `model.safetensors`, or `model.safetensors.index.json` and its shards.
        config: What the weights must fit.
        device: Where the model goes.
        dtype: What the weights are converted to; None keeps the file's (the widest one where a file mixes them).

    Returns:
        The model in evaluation mode, and notes about what was ignored.

    Raises:
        ModelFolderError: See `StoredWeights`; or a weight is not finite, before or after it is converted.
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
    # A copy in any case: torch's own memory begins where its fastest code wants it to, NumPy's elsewhere, and how
    # products are rounded may depend on that.
    tensor = numbers.to(device, dtype, copy=True)
    if not tensor.isfinite().all():
        raise stored.not_finite(name, str(dtype), was_finite=bool(numbers.isfinite().all()))
    return tensor


def save_weights(model: Transformer, folder: Path) -> None:
    """Write `model.safetensors`; a tied model has one tensor for the embedding and the output.

    Raises:
        ModelFolderError: A weight is not finite: such a file would be refused when it is read.
    """
    weights = {name: weight.detach().cpu().contiguous() for name, weight in model.state_dict().items()}
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise ModelFolderError(f"the model is not saved: {name} holds numbers that are not finite")
    save_file(weights, folder / SINGLE_FILE, metadata={"format": "pt"})
    # safetensors makes private files; a model folder is read by other users too, those of containers for one.
    (folder / SINGLE_FILE).chmod(0o644)
