"""Reading and writing the weights of a model: safetensors under Hugging Face's names. Nothing is ever unpickled."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shared.lm.config import ModelConfig
from shared.lm.errors import ModelFolderError
from shared.lm.json_file import read_json
from shared.lm.transformer import Transformer

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_WRAPPER_PREFIXES = ("_orig_mod.", "module.")


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
        ModelFolderError: Names the file and the fault: missing, cut or unlisted data; missing, unexpected or misshapen
            tensors; a tensor that is not made of finite floating-point numbers; an output projection that contradicts
            the config.
    """
    files, notes = find_weight_files(Path(folder))
    with torch.device("meta"):
        model = Transformer(config)
    stored = _StoredTensors(files)
    notes += stored.ignore_obsolete()
    expected = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}
    if config.tie_embeddings and "lm_head.weight" in stored.files:
        expected["lm_head.weight"] = expected[_EMBEDDING]
    stored.check(expected)
    target = dtype or stored.widest_dtype()
    weights = {name: stored.read(name, device, target) for name in expected}
    if config.tie_embeddings and "lm_head.weight" in weights:
        head = weights.pop("lm_head.weight")
        if not torch.equal(head, weights[_EMBEDDING]):
            raise ModelFolderError(
                f"{stored.files['lm_head.weight']}: lm_head.weight differs from {_EMBEDDING}, "
                'but config.json says "tie_word_embeddings": true'
            )
    model.load_state_dict(weights, assign=True)
    return model.to(device).eval(), notes


def save_weights(model: Transformer, folder: Path) -> None:
    """Write `model.safetensors`; a tied model has one tensor for the embedding and the output.

    Raises:
        TypeError: The model is wrapped (compiled, distributed), so that its names are not the model's own.
        ModelFolderError: A weight is not finite: such a file would be refused when it is read.
    """
    if type(model) is not Transformer:
        raise TypeError(f"only a Transformer itself can be saved, not the {type(model).__name__} around it")
    weights = {name: weight.detach().cpu().contiguous() for name, weight in model.state_dict().items()}
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise ModelFolderError(f"the model is not saved: {name} holds numbers that are not finite")
    save_file(weights, folder / SINGLE_FILE, metadata={"format": "pt"})
    # safetensors makes private files; a model folder is read by other users too, those of containers for one.
    (folder / SINGLE_FILE).chmod(0o644)


def find_weight_files(folder: Path) -> tuple[dict[Path, set[str] | None], tuple[str, ...]]:
    """Return the files that hold the weights, each with the names that the index gives it, and notes on the others.

    Raises:
        ModelFolderError: No weights, weights in another format, or an index that is damaged or names absent files.
    """
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.is_file():
        files: dict[Path, set[str] | None] = {single: None}
    elif index.is_file():
        files = {folder / name: names for name, names in _read_index(index).items()}
        for file in files:
            if not file.is_file():
                raise ModelFolderError(f"{file}: this shard is missing, though {INDEX_FILE} lists it")
    else:
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        hint = (
            f"; {', '.join(pickled)} is not read, since it may hold code: convert it to safetensors" if pickled else ""
        )
        raise ModelFolderError(f"{folder}: there is no {SINGLE_FILE} and no {INDEX_FILE}{hint}")
    others = sorted(path.name for path in folder.glob("*.safetensors") if path not in files)
    return files, tuple(f"{name} is not among the model's weight files and was ignored" for name in others)


def _read_index(index: Path) -> dict[str, set[str]]:
    """Return the tensor names of each shard."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelFolderError(f'{index}: "weight_map" must be an object of names and files, got {weight_map!r}')
    shards: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelFolderError(f"{index}: {name} must be in a file of the same folder, got {file!r}")
        shards.setdefault(file, set()).add(name)
    return shards


class _StoredTensors:
    """The tensors of some safetensors files, by name.

    Attributes:
        files: The file that holds each tensor.
    """

    def __init__(self, files: dict[Path, set[str] | None]) -> None:
        self.files: dict[str, Path] = {}
        self._handles: dict[Path, Any] = {}
        for file, listed in files.items():
            names = self._open(file)
            if listed is not None and (absent := listed - names):
                raise ModelFolderError(f"{file}: {INDEX_FILE} says that it holds {_list(absent)}, but it does not")
            for name in names if listed is None else listed:
                self.files[name] = file

    def _open(self, file: Path) -> set[str]:
        try:
            handle = safe_open(file, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ModelFolderError(f"{file}: cut short, damaged or not a safetensors file ({error})") from error
        self._handles[file] = handle
        return set(handle.keys())  # type: ignore[no-untyped-call] # safetensors has no stub for it

    def ignore_obsolete(self) -> tuple[str, ...]:
        """Drop the RoPE tables of older exports, which follow from the config."""
        obsolete = [name for name in self.files if name.endswith(".rotary_emb.inv_freq")]
        for name in obsolete:
            del self.files[name]
        return (
            (f"{len(obsolete)} rotary_emb.inv_freq tensors were ignored: config.json gives them",) if obsolete else ()
        )

    def check(self, expected: dict[str, tuple[int, ...]]) -> None:
        """Compare names, shapes and dtypes without reading data."""
        if wrapped := [name for name in self.files if name.startswith(_WRAPPER_PREFIXES)]:
            raise ModelFolderError(
                f"{self.files[wrapped[0]]}: {_list(wrapped)}: the names begin with a wrapper's prefix "
                "(torch.compile or DistributedDataParallel): save the model inside the wrapper"
            )
        places = ", ".join(str(file) for file in self._handles)
        if missing := expected.keys() - self.files.keys():
            raise ModelFolderError(f"{places}: the weights lack {_list(missing)}, which config.json asks for")
        if unexpected := self.files.keys() - expected.keys():
            raise ModelFolderError(
                f"{places}: the weights hold {_list(unexpected)}, which config.json has no place for"
            )
        for name, shape in expected.items():
            stored = self._slice(name)
            if tuple(stored.get_shape()) != shape:
                raise ModelFolderError(
                    f"{self.files[name]}: {name} has the shape {list(stored.get_shape())}, "
                    f"but config.json makes it {list(shape)}"
                )
            if stored.get_dtype() not in _DTYPES:
                raise ModelFolderError(
                    f"{self.files[name]}: {name} has the dtype {stored.get_dtype()}, but weights must be one of "
                    f"{', '.join(_DTYPES)}"
                )

    def widest_dtype(self) -> torch.dtype:
        """Return the dtype that holds every tensor without loss."""
        widest, *others = {_DTYPES[self._slice(name).get_dtype()] for name in self.files}
        for other in others:
            widest = torch.promote_types(widest, other)
        return widest

    def read(self, name: str, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        """Return a tensor in memory of its own; refuse what is not finite, before or after the conversion."""
        stored: Tensor = self._handles[self.files[name]].get_tensor(name)
        # get_tensor maps the file: without a copy, later changes of the file would reach the model.
        tensor = stored.to(device, dtype, copy=True)
        if not tensor.isfinite().all():
            fault = f"beyond the range of {dtype}" if stored.isfinite().all() else "not finite (NaN or infinity)"
            raise ModelFolderError(f"{self.files[name]}: {name} holds numbers that are {fault}")
        return tensor

    def _slice(self, name: str) -> Any:
        return self._handles[self.files[name]].get_slice(name)


def _list(names: Iterable[str]) -> str:
    """Name up to four tensors."""
    ordered = sorted(names)
    more = f" and {len(ordered) - 4} more" if len(ordered) > 4 else ""
    return ", ".join(ordered[:4]) + more


_EMBEDDING = "model.embed_tokens.weight"
