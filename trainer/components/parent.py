"""The model folder that a run starts from (`--init`): its architecture, its tokenizer, and its weights."""

import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from shared.bpe import Tokenizer
from shared.lm import (
    GenerationDefaults,
    ModelConfig,
    ModelDescription,
    ModelFolderError,
    Transformer,
    load_weights,
    read_description,
)
from shared.lm.weight_shapes import EMBEDDING, OUTPUT
from trainer.components.architecture import architecture_settings, generation_settings
from trainer.components.extension import added_contents, extend_tokenizer
from trainer.components.model import model_config
from trainer.errors import UsageError
from trainer.settings.fields import option
from trainer.settings.train import TrainSettings

logger = logging.getLogger(__name__)

_LARGEST_MULTIPLE = 128  # that vocabularies are padded to


@dataclass(frozen=True)
class Parent:
    """A model folder that a run starts from.

    Attributes:
        description: Everything in it but its weights.
        tokenizer: Its tokenizer, with the tokens that the run adds.
        config: Its architecture, with a row for each of them, and the context that the run extends it to.
        resumed: Whether it is a checkpoint of the run itself.
    """

    description: ModelDescription
    tokenizer: Tokenizer
    config: ModelConfig
    resumed: bool = False

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.description.path

    @property
    def added(self) -> list[str]:
        """The tokens that the run adds."""
        return added_contents(self.description.tokenizer, self.tokenizer)

    def generation(self, settings: TrainSettings) -> GenerationDefaults:
        """The folder's defaults for generating, with the settings' temperature and top_p."""
        watch = settings.watch
        return replace(self.description.generation, temperature=watch.temperature, top_p=watch.top_p)

    def load_model(self) -> tuple[Transformer, torch.dtype]:
        """The model in float32 on the CPU, and the dtype of the folder's weights.

        Rows of added tokens are the mean of those of the tokenizer's others (Hewitt 2021, "Initializing New Word
        Embeddings for Pretrained Language Models").

        Raises:
            ModelFolderError: see `load_weights`; or a weight is beyond the range of float32.
        """
        model, notes = load_weights(self.folder, self.description.config)
        for note in notes:
            logger.info("%s: %s", self.folder, note)
        dtype = model.output_weight.dtype
        weights = model.float().state_dict()
        if bad := next((name for name, weight in weights.items() if not weight.isfinite().all()), None):
            raise ModelFolderError(f"{self.folder}: {bad} holds weights beyond the range of float32")
        if self.config == self.description.config and not self.added:
            return model, dtype
        old = sorted(self.description.tokenizer.tokens)
        new = sorted(self.tokenizer.tokens.keys() - old)
        for name in weights.keys() & {EMBEDDING, OUTPUT} if new else ():
            weights[name] = _with_rows(weights[name], torch.tensor(old), torch.tensor(new), self.config.vocab_size)
        with torch.device("meta"):
            larger = Transformer(self.config)
        larger.load_state_dict(weights, assign=True)
        return larger.to("cpu"), dtype


def read_parent(folder: Path, extend_tokens: Sequence[str] = (), *, extend_context: int = 0) -> Parent:
    """Read and verify all but the weights of a model folder.

    Args:
        folder: The model folder.
        extend_tokens: Special tokens to add to its tokenizer.
        extend_context: The context, in tokens, to extend its own to, if that is shorter.

    Raises:
        ModelFolderError: see `read_description`.
        UsageError: a token cannot be added.
    """
    description = read_description(folder, research=True)
    tokenizer = extend_tokenizer(description.tokenizer, extend_tokens)
    rows = _rows(description.config.vocab_size, description.tokenizer.vocab_size, tokenizer.vocab_size)
    context = max(description.config.context_length, extend_context)
    return Parent(description, tokenizer, replace(description.config, vocab_size=rows, context_length=context))


def parent_of(settings: TrainSettings, folder: Path) -> Parent:
    """The model folder of `--init`, extended as the settings say.

    Raises:
        ModelFolderError: see `read_description`.
        UsageError: a token cannot be added, or the settings contradict the folder.
    """
    given = settings.parent
    longest = settings.model.context_length if given.extend_context else 0
    parent = read_parent(folder, given.extend_tokens, extend_context=longest)
    check_architecture(settings, parent)
    if given.extend_context and longest <= (own := parent.description.config.context_length):
        raise UsageError(
            f"--extend-context: --context-length ({longest}) must be above the {own} of the model in --init {folder}; "
            "give a longer one, or omit --extend-context"
        )
    return parent


def check_architecture(settings: TrainSettings, parent: Parent) -> None:
    """Refuse settings of the model that contradict those of the folder.

    Raises:
        UsageError: names them with both values.
    """
    own, place = architecture_settings(parent.config), f"--init {settings.parent.init}"
    context, longest = settings.model.context_length, own.pop("context_length")
    differing = [
        f"{option(name)} is {asked}, and there {value}"
        for name, value in own.items()
        if (asked := getattr(settings.model, name)) != value
    ]
    if differing:
        raise UsageError(f"the architecture is that of {place}: omit what contradicts it: {'; '.join(differing)}")
    if context > longest:
        raise UsageError(
            f"--context-length ({context}) must be at most the {longest} of the model in {place}; --extend-context "
            "lets it be longer"
        )


def check_tokenizer(parent: Parent, data: Path, tokenizer: Tokenizer) -> None:
    """Refuse token files that were encoded with another tokenizer than the parent's.

    Raises:
        UsageError: names both, and what would make them equal.
    """
    original, ours = parent.description.tokenizer, parent.tokenizer
    encode = f"encode the text again with --tokenizer {parent.folder}{_options(parent.added)}"
    if tokenizer.fingerprint != ours.fingerprint:
        more = added_contents(original, tokenizer)
        has_more = bool(more) and extend_tokenizer(original, more).fingerprint == tokenizer.fingerprint
        raise UsageError(
            f"{data} was encoded with the tokenizer {tokenizer.fingerprint}, but the model in {parent.folder} has "
            f"{ours.fingerprint}: {f'it has more special tokens: give{_options(more)}' if has_more else encode}"
        )
    if tokenizer.end_of_text_id != ours.end_of_text_id:
        raise UsageError(
            f"documents in {data} end with the id {tokenizer.end_of_text_id}, but those of the model in "
            f"{parent.folder} with {ours.end_of_text_id}: {encode}"
        )


def trained_config(settings: TrainSettings, vocab_size: int | None) -> ModelConfig:
    """What a run would train, for estimates: with the context of its windows.

    Args:
        settings: The run's.
        vocab_size: Of the data's tokenizer; None if only the folder of `--init` gives it.

    Raises:
        UsageError: sizes that do not match, or that contradict the folder's.
    """
    init = settings.parent.init
    if init is None:
        if vocab_size is None:
            raise UsageError("unknown vocabulary size: give --data or --vocab-size")
        return model_config(settings.model, vocab_size)
    parent = parent_of(settings, init)
    if vocab_size not in {None, parent.tokenizer.vocab_size, parent.config.vocab_size}:
        raise UsageError(
            f"the vocabulary has {vocab_size} tokens, and that of --init {init} {parent.tokenizer.vocab_size}: encode "
            "the data with its tokenizer"
        )
    return windowed(parent.config, settings)


def windowed(config: ModelConfig, settings: TrainSettings) -> ModelConfig:
    """A model's configuration with the context of the run's windows, which is what its steps compute."""
    return replace(config, context_length=settings.model.context_length)


def starting_from(
    settings: TrainSettings, folder: Path, extend_tokens: Sequence[str] = (), *, extend_context: int = 0
) -> TrainSettings:
    """The settings with a model folder to start from, and all that follows from it, as the command line fills it.

    The arguments are those of `read_parent`.
    """
    parent = read_parent(folder, extend_context=extend_context)
    watch = replace(settings.watch, **generation_settings(parent.description.generation))
    extends = parent.config.context_length > parent.description.config.context_length
    return replace(
        settings,
        parent=replace(settings.parent, init=folder, extend_tokens=tuple(extend_tokens), extend_context=extends),
        model=replace(settings.model, **architecture_settings(parent.config)),
        watch=watch,
    )


def _options(tokens: Sequence[str]) -> str:
    return "".join(f" --extend-tokens {shlex.quote(token)}" for token in tokens)


def _rows(rows: int, tokens_before: int, tokens_after: int) -> int:
    """Rows for a larger vocabulary: padding is used first, and a vocabulary that had padding has it again."""
    if tokens_after <= rows:
        return rows
    multiple = min(rows & -rows, _LARGEST_MULTIPLE) if rows > tokens_before else 1
    return -(-tokens_after // multiple) * multiple


def _with_rows(weight: Tensor, old: Tensor, new: Tensor, rows: int) -> Tensor:
    """A matrix with more rows: those of new tokens, and all that are added, are the mean of those of old ones."""
    mean = weight[old].mean(0, dtype=torch.float64).to(weight.dtype)
    larger = torch.cat([weight, mean.expand(rows - len(weight), -1)])
    larger[new] = mean
    return larger
