"""A model of another format on its way to a model folder: built, compared with the format's definition, saved."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.bpe import Tokenizer
from shared.lm.config import ModelConfig
from shared.lm.errors import ModelFolderError
from shared.lm.folder import save_model_folder
from shared.lm.generation_config import GenerationDefaults
from shared.lm.transformer import Transformer
from shared.lm.weight_shapes import OUTPUT, weight_shapes
from trainer.card.model_card import write_model_card
from trainer.errors import TrainerError
from trainer.importing.names import some

_CHECKED_TOKENS = 32
_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Of the largest logit, by the type that ours are computed in; the definition's are computed in float64."""
_IN_FLOAT32 = 1 << 30
"""The most weights for which a copy in float32 is made for the comparison."""


@dataclass(frozen=True)
class ForeignModel:
    """A model as a format's reader returns it.

    Attributes:
        format: What to call the format.
        config: The architecture that computes the same here.
        weights: By Hugging Face's names, in our layout.
        theirs: The format's name of each weight, for messages.
        logits: The format's own definition: ids [tokens] to logits [tokens, at most vocab_size].
        notes: What was left out, or is different, as readable sentences.
    """

    format: str
    config: ModelConfig
    weights: Mapping[str, Tensor]
    theirs: Callable[[str], str]
    logits: Callable[[NDArray[np.int64]], NDArray[np.float64]]
    notes: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True)
class ImportedModel:
    """A model that computes what its format defines, to `largest_difference` of the largest logit."""

    model: Transformer
    foreign: ForeignModel
    largest_difference: float

    @property
    def check(self) -> str:
        """What the comparison gave, in words."""
        return (
            f"Logits of {_CHECKED_TOKENS} random tokens equal the format's own definition, computed apart in float64, "
            f"to {self.largest_difference:.0e} of the largest"
        )


def build(foreign: ForeignModel) -> ImportedModel:
    """Build the model, and compare its logits with the format's definition on some random tokens.

    Raises:
        TrainerError: Weights are missing or of the wrong shape, or the logits differ.
    """
    config = foreign.config
    expected = weight_shapes(config)
    if unexpected := [foreign.theirs(name) for name in foreign.weights if name not in expected]:
        raise TrainerError(f"the file holds {some(unexpected)}, which its settings do not have")
    for name, shape in expected.items():
        if name not in foreign.weights:
            raise TrainerError(f"the file lacks {foreign.theirs(name)}")
        if (found := tuple(foreign.weights[name].shape)) != shape:
            raise TrainerError(f"{foreign.theirs(name)} has the shape {list(found)}, expected {list(shape)}")
    dtype = _common_dtype(foreign)
    model = _with_weights(config, {name: foreign.weights[name].to(dtype).contiguous() for name in expected})
    return ImportedModel(model, foreign, _difference(model, foreign))


def save(folder: Path, imported: ImportedModel, tokenizer: Tokenizer, source: Path) -> None:
    """Write the model folder.

    Raises:
        TrainerError: The tokenizer has more tokens than the model, or the folder exists.
    """
    eos, foreign = tokenizer.end_of_text_id, imported.foreign
    try:
        save_model_folder(
            folder,
            model=imported.model,
            tokenizer=tokenizer,
            generation=GenerationDefaults(eos_token_ids=() if eos is None else (eos,)),
            provenance={"imported": {"file": source.resolve().name, "format": foreign.format, "check": imported.check}},
            extra_files=lambda made: write_model_card(made, foreign.config, tokenizer, replaces=folder),
        )
    except ModelFolderError as error:
        raise TrainerError(str(error)) from error


def is_tied(embedding: Tensor, output: Tensor | None) -> bool:
    """Whether the output projection is absent, or equal to the embedding."""
    return output is None or (embedding.shape == output.shape and torch.equal(embedding, output))


def in_halves(weight: Tensor, num_heads: int) -> Tensor:
    """Reorder a projection to queries or keys: neighboring channels of a head become channels half a head apart.

    Meta's code rotates the former, Hugging Face's and ours the latter.
    """
    pairs = weight.reshape(num_heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _common_dtype(foreign: ForeignModel) -> torch.dtype:
    """The one that holds all weights, but float32 instead of float64."""
    common = None
    for name, weight in foreign.weights.items():
        if not weight.is_floating_point():
            raise TrainerError(f"{foreign.theirs(name)} holds {str(weight.dtype).removeprefix('torch.')}, not weights")
        common = weight.dtype if common is None else torch.promote_types(common, weight.dtype)
    return common if common in _TOLERANCES else torch.float32


def _with_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config).eval()
    model.load_state_dict(weights, assign=True)
    return model


def _difference(model: Transformer, foreign: ForeignModel) -> float:
    """The largest difference of logits, relative to the largest logit."""
    config = model.config
    if config.num_parameters <= _IN_FLOAT32:
        model = _with_weights(config, {name: weight.float() for name, weight in model.state_dict().items()})
    tolerance = _TOLERANCES[model.output_weight.dtype]
    length = min(_CHECKED_TOKENS, config.context_length)
    ids = torch.randint(config.vocab_size, (length,), generator=torch.Generator().manual_seed(0))
    with np.errstate(all="ignore"):
        expected = foreign.logits(ids.numpy())
        with torch.no_grad():
            found = model(ids[None])[0, :, : expected.shape[1]].double().numpy()
        difference = float(abs(found - expected).max() / abs(expected).max())
    if not difference <= tolerance:  # also for NaN
        raise TrainerError(
            f"the model's logits differ from the definition of its format ({foreign.format}) by {difference:.1e} "
            f"of the largest one ({tolerance:g} is allowed): nothing was written"
        )
    return difference


def drop_tied_output(weights: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The weights without an output projection that is the embedding."""
    return {name: weight for name, weight in weights.items() if name != OUTPUT or not config.tie_embeddings}
