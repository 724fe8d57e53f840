"""Everything in a model folder except the weights: architecture, tokenizer, defaults and provenance. No torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.bpe import Tokenizer, TokenizerError
from shared.bpe.formats.folder import read_vocabulary
from shared.lm.config import ModelConfig
from shared.lm.errors import ModelConfigError, ModelFolderError
from shared.lm.generation_config import GenerationDefaults
from shared.lm.json_file import read_json
from shared.system.checksums import ChecksumError, Checksums
from shared.system.errors import display_name, short_repr

FORMAT_VERSION = 1


@dataclass(frozen=True)
class ModelDescription:
    """A model folder without its weights, read and verified.

    Attributes:
        path: The folder.
        config: The model's architecture.
        tokenizer: Each of its ids has a row in the model's embedding.
        generation: Default sampling parameters and end-of-text ids.
        provenance: The content of `ownlm.json`; empty if there is none.
    """

    path: Path
    config: ModelConfig
    tokenizer: Tokenizer
    generation: GenerationDefaults
    provenance: Mapping[str, Any]


def read_description(path: str | Path, *, research: bool = False) -> ModelDescription:
    """Read and verify everything in a model folder except its weights; the folder may come from other programs.

    If it has a `checksums.json`, every file except the weights is compared with it (`StoredWeights` verifies those).

    Args:
        path: The folder.
        research: Accept research models too, see `ModelConfig.research_features`.

    Raises:
        ModelFolderError: Names the file and the fault.
    """
    try:
        return _read(Path(path), research=research)
    except OSError as error:  # from looking for files: a name that is too long, or missing permission
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror}") from error


def _read(path: Path, *, research: bool) -> ModelDescription:
    if not path.is_dir():
        raise ModelFolderError(f"{path}: no such folder")
    if not (path / "config.json").exists():
        raise ModelFolderError(f"{path}: not a model folder, since it has no config.json{_suggestion(path)}")
    _verify(path)
    raw_config = read_json(path / "config.json")
    config = read_config(path, research=research)
    tokenizer = _load_tokenizer(path)
    check_vocabulary(path / "config.json", config, tokenizer)
    generation = _read_generation(path, raw_config, config, tokenizer)
    provenance = read_json(path / "ownlm.json", optional=True)
    _check_provenance(path / "ownlm.json", provenance, tokenizer)
    return ModelDescription(path, config, tokenizer, generation, provenance)


def read_config(path: str | Path, *, research: bool = False) -> ModelConfig:
    """Read the architecture from a folder's `config.json`.

    Raises:
        ModelFolderError: The file is missing or damaged, or describes a model that cannot be run exactly, or a research
            model while `research` is false.
    """
    file = Path(path) / "config.json"
    try:
        config = ModelConfig.from_hf(read_json(file))
    except ModelConfigError as error:
        raise ModelFolderError(f"{file}: {error}") from error
    if config.research_features and not research:
        raise ModelFolderError(
            f"{file}: this is a research checkpoint ({', '.join(config.research_features)}), which only the trainer "
            "opens (generate, evaluate, train --resume): serve a model trained without these switches"
        )
    return config


def valid_tokens(tokenizer: Tokenizer, config: ModelConfig) -> NDArray[np.bool_]:
    """Return bool [vocab_size]: True for the ids of the tokenizer.

    Other ids (padding rows of the embedding, gaps) must never be sampled.
    """
    mask = np.zeros(config.vocab_size, np.bool_)
    mask[list(tokenizer.tokens)] = True
    return mask


def check_vocabulary(place: Path, config: ModelConfig, tokenizer: Tokenizer) -> None:
    """Refuse a model without a row for each of the tokenizer's ids; the message begins with `place`."""
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelFolderError(
            f"{place}: the model has {config.vocab_size} tokens, but the tokenizer has ids up to "
            f"{tokenizer.vocab_size - 1}"
        )


def check_eos(place: Path, eos_token_ids: Iterable[int], config: ModelConfig) -> None:
    """Refuse end-of-text ids outside of the vocabulary; the message begins with `place`."""
    for token in eos_token_ids:
        if not 0 <= token < config.vocab_size:
            raise ModelFolderError(
                f"{place}: the end-of-text id {short_repr(token)} is outside of the vocabulary of "
                f"{config.vocab_size} tokens"
            )


def _verify(path: Path) -> None:
    try:
        Checksums.read(path).verify_small_files()
    except ChecksumError as error:
        raise ModelFolderError(str(error)) from error


def _suggestion(path: Path) -> str:
    """Suggest a model folder inside the folder of a training run: its model or its newest checkpoint."""
    models = (file for file in path.glob("*/config.json") if ".aside" not in file.parent.name)  # moved out of the way
    checkpoints = path.glob(f"*/step-{'[0-9]' * 8}/config.json")
    inside = sorted(models)[:1] or sorted(checkpoints)[-1:]
    return f"; did you mean {inside[0].parent}?" if inside else ""


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer(read_vocabulary(path))  # all files are verified already
    except (TokenizerError, OSError) as error:
        raise ModelFolderError(f"{path}: the tokenizer cannot be read: {error}") from error


def _read_generation(
    path: Path, raw_config: Mapping[str, Any], config: ModelConfig, tokenizer: Tokenizer
) -> GenerationDefaults:
    file = path / "generation_config.json"
    raw = read_json(file, optional=True)
    eos = dict.fromkeys(_eos_ids(file, raw) + _eos_ids(path / "config.json", raw_config))
    if not eos and tokenizer.end_of_text_id is not None:
        eos = {tokenizer.end_of_text_id: None}
    check_eos(file if file.exists() else path / "config.json", eos, config)
    try:
        return GenerationDefaults.from_hf(raw, eos_token_ids=tuple(eos))
    except ModelFolderError as error:
        raise ModelFolderError(f"{file}: {error}") from error


def _eos_ids(file: Path, content: Mapping[str, Any]) -> list[int]:
    value = content.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(token) is int for token in ids):
        raise ModelFolderError(f'{file}: "eos_token_id" must be an id or a list of ids, got {short_repr(value)}')
    return ids


def _check_provenance(file: Path, provenance: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    if not provenance:
        return
    if provenance.get("format_version") != FORMAT_VERSION:
        raise ModelFolderError(
            f'{file}: "format_version" must be {FORMAT_VERSION}, got {short_repr(provenance.get("format_version"))}'
        )
    for values, key in ((provenance, "training"), (provenance.get("training"), "settings")):
        if isinstance(values, Mapping) and not isinstance(values.get(key, {}), Mapping):
            raise ModelFolderError(f'{file}: "{key}" must be an object, got {short_repr(values[key])}')
    recorded = provenance.get("tokenizer_fingerprint")
    if recorded != tokenizer.fingerprint:
        raise ModelFolderError(
            f"{file}: the model was trained with the tokenizer {display_name(recorded)}, "
            f"but the folder holds {tokenizer.fingerprint}"
        )
