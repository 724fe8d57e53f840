"""`import`: a model that another program has written."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from trainer.errors import TrainerError, UsageError
from trainer.settings.fields import option

if TYPE_CHECKING:
    from trainer.importing.foreign import ForeignModel

logger = logging.getLogger(__name__)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ImportSettings:
    """What the files do not say."""

    tokenizer: Path
    """The model's tokenizer: a folder with tokenizer.json, or with vocab.json and merges.txt; or a SentencePiece
    vocabulary with byte fallback, such as Llama 2's: tokenizer.model, or llama2.c's tokenizer.bin."""

    num_heads: int | None = None
    """Attention heads of each layer; of CS336's state dicts."""

    context_length: int | None = None
    """The most tokens that the model was trained on at once; of CS336's state dicts, and of Meta's files (Llama 2:
    4096, Llama 3: 8192, Llama 3.1 and later: 131072)."""

    rope_theta: float | None = None
    """Base of the rotary embedding; of CS336's state dicts, 10,000 if not given."""

    norm_eps: float | None = None
    """What RMSNorm adds to the mean square; of CS336's state dicts, 1e-5 if not given."""

    strip_wrappers: bool = False
    """Remove the prefixes `_orig_mod.` and `module.`, which torch.compile and DistributedDataParallel put before names.
    """


def import_model(source: Path, output: Path, *, settings: ImportSettings) -> None:
    """Make a model folder of a model of CS336, llama2.c, litgpt, Meta or nanochat.

    Its logits are compared with the format's own forward pass, computed apart in float64, before anything is written.
    Of `torch.save`'s files only tensors and plain containers are read. The source is never changed.

    Args:
        source: CS336: a state dict, or a checkpoint that holds it under "model", of torch.save or safetensors.
            llama2.c: a `.bin` of version 0, 1 or 2. litgpt: the folder with lit_model.pth and model_config.yaml. Meta:
            the folder with consolidated.00.pth and params.json. nanochat: model_NNNNNN.pt, beside meta_NNNNNN.json.
        output: The model folder to write: for `generate`, `evaluate`, `export` and the services.
        settings: What the files do not say.
    """
    from shared.bpe import Tokenizer
    from shared.bpe.formats.llama2c import ENDS, is_llama2c
    from trainer.importing.foreign import build, save

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise TrainerError(f"{output}: already exists; choose another folder")
    tokenizer = Tokenizer.from_files(settings.tokenizer)
    foreign = _read(source, settings)
    if tokenizer.vocab_size > foreign.config.vocab_size:
        raise UsageError(
            f"--tokenizer {settings.tokenizer}: has ids up to {tokenizer.vocab_size - 1:,}, but the model has "
            f"{foreign.config.vocab_size:,} tokens: it is another model's"
        )
    imported = build(foreign)
    eos = tokenizer.end_of_text_id
    ends = ENDS if is_llama2c(settings.tokenizer) else () if eos is None else (eos,)
    save(output, imported, tokenizer, source, ends=ends)
    for note in foreign.notes:
        logger.info("%s", note)
    logger.info("wrote %s: %s parameters. %s", output, f"{foreign.config.num_parameters:,}", imported.check)


def _read(source: Path, settings: ImportSettings) -> "ForeignModel":
    from trainer.importing.cs336 import CS336Options, read_cs336
    from trainer.importing.litgpt import read_litgpt
    from trainer.importing.llama2c import read_llama2c
    from trainer.importing.meta import read_meta
    from trainer.importing.nanochat import read_nanochat
    from trainer.importing.recognition import format_of_names, format_of_path
    from trainer.importing.state_file import read_state

    kind, path = format_of_path(source)
    if kind is None:
        state = read_state(path, strip_wrappers=settings.strip_wrappers)
        kind = format_of_names(path, state)
    if kind == "cs336":
        _require(source, settings, "num_heads", "context_length")
        given = {name: getattr(settings, name) for name in ("num_heads", "context_length", "rope_theta", "norm_eps")}
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return read_cs336(state, CS336Options(**options))
    if kind == "meta":
        _require(source, settings, "context_length")
        _refuse(source, settings, "num_heads", "rope_theta", "norm_eps")
        assert settings.context_length is not None
        return read_meta(path, settings.context_length)
    _refuse(source, settings, "num_heads", "context_length", "rope_theta", "norm_eps")
    readers = {"llama2.c": read_llama2c, "litgpt": read_litgpt, "nanochat": read_nanochat}
    return readers[kind](path)


def _require(source: Path, settings: ImportSettings, *names: str) -> None:
    for name in names:
        if getattr(settings, name) is None:
            raise UsageError(f"{source} does not specify the model's {name.replace('_', ' ')}: pass {option(name)}")


def _refuse(source: Path, settings: ImportSettings, *names: str) -> None:
    for name in names:
        if getattr(settings, name) is not None:
            raise UsageError(f"{option(name)}: already specified by {source}; omit this option")
