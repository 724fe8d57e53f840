"""The model folder: a Hugging Face folder with weights, tokenizer, generation defaults and provenance."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from shared.bpe import Tokenizer
from shared.lm.config import ModelConfig
from shared.lm.description import FORMAT_VERSION, check_eos, check_vocabulary, read_description, valid_tokens
from shared.lm.errors import ModelFolderError
from shared.lm.generation_config import GenerationDefaults
from shared.lm.json_file import write_json
from shared.lm.transformer import Transformer
from shared.lm.weights import load_weights, save_weights
from shared.system.checksums import write_checksums
from shared.system.folder_swap import replace_folder


@dataclass(frozen=True)
class ModelFolder:
    """A model folder that was read and verified.

    Attributes:
        path: The folder.
        model: In evaluation mode.
        config: The model's architecture.
        tokenizer: Each of its ids has a row in the model's embedding.
        generation: Default sampling parameters and end-of-text ids.
        valid_tokens: bool [vocab_size] on the CPU, see `description.valid_tokens`.
        provenance: The content of `ownlm.json`; empty if there is none.
        notes: What was ignored, as readable sentences.
    """

    path: Path
    model: Transformer
    config: ModelConfig
    tokenizer: Tokenizer
    generation: GenerationDefaults
    valid_tokens: Tensor
    provenance: Mapping[str, Any]
    notes: tuple[str, ...]


def load_model_folder(
    path: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    research: bool = False,
) -> ModelFolder:
    """Read and verify a model folder, which may come from other programs.

    Args:
        path: The folder.
        device: Where the model goes.
        dtype: The dtype of the model; None keeps that of the file.
        research: Accept research models too, see `ModelConfig.research_features`.

    Raises:
        ModelFolderError: Names the file and the fault.
    """
    description = read_description(path, research=research)
    config, tokenizer = description.config, description.tokenizer
    model, notes = load_weights(description.path, config, device=device, dtype=dtype)
    return ModelFolder(
        path=description.path,
        model=model,
        config=config,
        tokenizer=tokenizer,
        generation=description.generation,
        valid_tokens=valid_token_mask(tokenizer, config),
        provenance=description.provenance,
        notes=notes,
    )


def save_model_folder(
    path: str | Path,
    *,
    model: Transformer,
    tokenizer: Tokenizer,
    generation: GenerationDefaults,
    provenance: Mapping[str, Any],
    extra_files: Callable[[Path], None] | None = None,
    overwrite: bool = False,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a model folder that this package and transformers open.

    It is written to a temporary folder beside `path`, synced, and renamed: a crash leaves the old folder or the new.
    `checksums.json` holds the SHA-256 of every other file except `README.md`; every reader of the folder verifies them.

    Args:
        path: The folder.
        model: The model.
        tokenizer: The one that the model was trained with.
        generation: Defaults for generating.
        provenance: How the model was made, as JSON values; written as `"training"` to `ownlm.json`.
        extra_files: Called with the temporary folder, to add files (a checkpoint's training state, a card).
        overwrite: Whether to replace a folder that this function wrote earlier.
        dtype: Of the weights in the file; None keeps the model's.

    Raises:
        TypeError: The model is another module, or is wrapped (compiled, distributed).
        ModelFolderError: The folder exists, the parts contradict each other, or writing failed. `path` is then
            unchanged.
    """
    if type(model) is not Transformer:
        raise TypeError(f"expected a Transformer, found a {type(model).__name__}; pass the module inside the wrapper")
    path = Path(path)
    check_vocabulary(path, model.config, tokenizer)
    check_eos(path, generation.eos_token_ids, model.config)
    _check_replaceable(path, overwrite=overwrite)
    try:
        with replace_folder(path) as folder:
            save_weights(model, folder, dtype)
            tokenizer.save(folder)
            _write_configs(folder, model.config, dtype or model.output_weight.dtype, tokenizer, generation)
            write_json(folder / "ownlm.json", _provenance(model.config, tokenizer, provenance))
            if extra_files is not None:
                extra_files(folder)
            write_checksums(folder)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch.save reports a full disk as a RuntimeError
        raise ModelFolderError(
            f"{path}: writing the model failed and nothing was changed; are there free space and permission? ({error})"
        ) from error


def valid_token_mask(tokenizer: Tokenizer, config: ModelConfig) -> Tensor:
    """Return `valid_tokens` as a tensor on the CPU."""
    return torch.from_numpy(valid_tokens(tokenizer, config))


def _check_replaceable(path: Path, *, overwrite: bool) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise ModelFolderError(f"{path}: expected a directory, found a file")
    if not any(path.iterdir()):
        return
    if not overwrite:
        raise ModelFolderError(f"{path}: already exists; choose another folder, or pass overwrite")
    if not (path / "ownlm.json").is_file():
        raise ModelFolderError(f"{path}: is not overwritten, since ownlm did not write it (it has no ownlm.json)")


def _write_configs(
    folder: Path, config: ModelConfig, dtype: torch.dtype, tokenizer: Tokenizer, generation: GenerationDefaults
) -> None:
    eos = generation.eos_token_ids
    ids = {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": None if not eos else eos[0] if len(eos) == 1 else list(eos),
        "pad_token_id": None,
    }
    name = str(dtype).removeprefix("torch.")
    # transformers 5 writes "dtype", earlier versions "torch_dtype".
    write_json(folder / "config.json", {**config.to_hf(), **ids, "dtype": name, "torch_dtype": name})
    write_json(folder / "generation_config.json", {**ids, **generation.to_hf()})


def _provenance(config: ModelConfig, tokenizer: Tokenizer, training: Mapping[str, Any]) -> dict[str, Any]:
    try:
        own_version = version("ownlm")
    except PackageNotFoundError:
        own_version = "unknown"
    return {
        "format_version": FORMAT_VERSION,
        "ownlm_version": own_version,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "num_parameters": config.num_parameters,
        "training": dict(training),
    }
