"""What the folders of a run take over from the model folder that it started from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shared.bpe import Tokenizer
from shared.chat import read_templates
from shared.chat.files import DEFAULT
from shared.lm import ModelDescription, ModelFolderError
from shared.lm.json_file import read_json, write_json
from shared.lm.weight_files import find_weight_files
from shared.system.checksums import file_sha256
from trainer.errors import UsageError
from trainer.runs.folder import RunFolder

PARENT = "parent"
"""Its key in the provenance of the run's folders."""

_TOKENIZER, _GENERATION, _MODEL = "tokenizer_config.json", "generation_config.json", "config.json"
# What has settings of its own, or says which program wrote the file.
_WRITTEN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "do_sample", "transformers_version")
_TEMPLATE = "chat_template"
_LIMIT = "model_max_length"
_LINEAGE = ("steps", "tokens", "data", PARENT)


@dataclass(frozen=True)
class Inherited:
    """What is taken over.

    Attributes:
        identity: Which model it was: for the provenance.
        values: Of the files of a folder, what only they hold: the chat template, the padding token, and the like.
    """

    identity: Mapping[str, Any]
    values: Mapping[str, Mapping[str, Any]]

    @property
    def dtype(self) -> torch.dtype:
        """Of the parent's weights, in which the finished model is written; float32 for float64."""
        dtype: torch.dtype = getattr(torch, self.identity["dtype"])
        return torch.float32 if dtype == torch.float64 else dtype

    def write(self, folder: Path) -> None:
        """Add the values to a folder that is being written; those that it has itself take precedence."""
        has_template = read_templates(folder) is not None
        for name, values in self.values.items():
            own = {key: value for key, value in read_json(folder / name).items() if value is not None}
            added = {key: value for key, value in values.items() if not (has_template and key == _TEMPLATE)}
            write_json(folder / name, {**added, **own})


def inherit(parent: ModelDescription, tokenizer: Tokenizer, dtype: torch.dtype, context_length: int) -> Inherited:
    """What a new run takes over.

    Args:
        parent: The model folder.
        tokenizer: The run's.
        dtype: Of the parent's weights.
        context_length: The run's; where it is longer than the folder's, the tokenizer's limit grows with it.

    Raises:
        ModelFolderError: a file cannot be read.
        ChatTemplateError: the chat template cannot be read.
    """
    training = parent.provenance.get("training", {})
    try:
        digests = {file.name: file_sha256(file) for file in sorted(find_weight_files(parent.path)[0])}
    except OSError as error:
        raise ModelFolderError(f"{error.filename}: cannot be read: {error.strerror}") from error
    identity = {
        "name": _name(parent.path),
        "weights_sha256": digests,
        "dtype": str(dtype).removeprefix("torch."),
        "tokenizer_fingerprint": parent.tokenizer.fingerprint,
        "training": {key: training[key] for key in _LINEAGE if key in training},
    }
    values = _values(parent.path, tokenizer)
    limit = values[_TOKENIZER].get(_LIMIT)
    if context_length > parent.config.context_length and isinstance(limit, int) and limit < context_length:
        values[_TOKENIZER][_LIMIT] = context_length
    return Inherited(identity, values)


def inherit_again(checkpoint: ModelDescription) -> Inherited:
    """What a resumed run has taken over: its checkpoints hold all of it.

    Raises:
        UsageError: the run did not start from a model folder.
        ChatTemplateError: the chat template cannot be read.
    """
    identity = checkpoint.provenance.get("training", {}).get(PARENT)
    if not isinstance(identity, dict) or identity.get("dtype") not in {"float64", "float32", "bfloat16", "float16"}:
        raise UsageError(f"{checkpoint.path} is of a run that did not start from a model folder: omit --init")
    return Inherited(identity, _values(checkpoint.path, checkpoint.tokenizer))


def _name(folder: Path) -> str:
    """The folder's name; for one of a run, with the name of the run."""
    path = folder.resolve()
    run = next((place for place in list(path.parents)[:2] if RunFolder(place).settings_file.is_file()), path)
    return path.relative_to(run.parent).as_posix()


def _values(folder: Path, tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    generation = read_json(folder / _GENERATION, optional=True)
    model = read_json(folder / _MODEL)
    return {
        _TOKENIZER: dict(_tokenizer_values(folder, tokenizer)),
        _GENERATION: {key: value for key, value in generation.items() if key not in _WRITTEN},
        _MODEL: {key: model[key] for key in ("bos_token_id", "pad_token_id") if key in model},
    }


def _tokenizer_values(folder: Path, tokenizer: Tokenizer) -> Iterator[tuple[str, Any]]:
    """The chat templates, wherever the folder has them; tokens that the tokenizer has; and how batches are padded."""
    config = read_json(folder / _TOKENIZER, optional=True)
    added = {token.content for token in tokenizer.vocabulary.added}
    for key, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str) and content in added:
            yield key, content
        elif key in {"additional_special_tokens", "extra_special_tokens"} and isinstance(value, list):
            yield key, [name for name in value if isinstance(name, str) and name in added]
        elif key in {_LIMIT, "padding_side", "truncation_side"}:
            yield key, value
    if (found := read_templates(folder)) is not None:
        named = [{"name": name, "template": source} for name, source in found.templates.items()]
        yield _TEMPLATE, found.templates[DEFAULT] if list(found.templates) == [DEFAULT] else named
