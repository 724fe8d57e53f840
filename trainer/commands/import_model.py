"""`import`: a model that another program has written."""

import logging
from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

logger = logging.getLogger(__name__)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ImportSettings:
    """What the file does not say."""

    tokenizer: Path
    """The model's tokenizer: a folder with tokenizer.json, or with vocab.json and merges.txt."""

    num_heads: int
    """Attention heads of each layer."""

    context_length: int
    """The most tokens that the model was trained on at once."""

    rope_theta: float = 10_000.0
    """Base of the rotary embedding."""

    norm_eps: float = 1e-5
    """What RMSNorm adds to the mean square."""

    strip_wrappers: bool = False
    """Remove the prefixes `_orig_mod.` and `module.`, which torch.compile and DistributedDataParallel put before names.
    """


def import_model(source: Path, output: Path, *, settings: ImportSettings) -> None:
    """Make a model folder of a state dict of CS336's assignment 1.

    The model's logits are compared with those of the assignment's own forward pass before anything is written. The
    file may be one of `torch.save`, of which only tensors and plain containers are read, or of safetensors. A
    checkpoint that holds the state dict under "model" is one, too.

    Args:
        source: The file.
        output: The model folder to write: for `generate`, `evaluate`, `export` and the services.
        settings: What the file does not say.
    """
    from shared.bpe import Tokenizer
    from trainer.importing.cs336 import CS336Options, import_cs336, save_imported
    from trainer.importing.state_file import read_state

    tokenizer = Tokenizer.from_files(settings.tokenizer)
    options = CS336Options(
        num_heads=settings.num_heads,
        context_length=settings.context_length,
        rope_theta=settings.rope_theta,
        norm_eps=settings.norm_eps,
    )
    imported = import_cs336(read_state(source, strip_wrappers=settings.strip_wrappers), options)
    if imported.ignored:
        logger.info(
            "left out %d tables that follow from the settings, such as %s", len(imported.ignored), imported.ignored[0]
        )
    save_imported(output, imported, tokenizer, source)
    logger.info(
        "wrote %s: %s parameters; logits equal the assignment's forward pass to %.0e of the largest",
        output,
        f"{imported.config.num_parameters:,}",
        imported.largest_difference,
    )
