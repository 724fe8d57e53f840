"""`export`: a model for other programs."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cyclopts import Parameter

from shared.system.errors import how_to_install
from trainer.errors import TrainerError, UsageError

logger = logging.getLogger(__name__)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """The file."""

    gguf: Path
    """The GGUF file to write, for llama.cpp, Ollama and LM Studio; `Modelfile` is written beside it."""

    dtype: Literal["f32", "f16", "bf16", "q8_0"] = "f16"
    """How matrices are stored: f32 is exact, q8_0 the smallest."""

    overwrite: bool = False
    """Replace the file if it exists."""


def export(model: Path, *, settings: ExportSettings) -> None:
    """Write a model as a GGUF file, which llama.cpp, Ollama and LM Studio run.

    A model is refused where llama.cpp would compute something else, or split text into other tokens.

    Args:
        model: A model folder: runs/first/model, or any that the services open.
        settings: What is written.
    """
    if settings.gguf.suffix != ".gguf":
        raise UsageError(f"--gguf {settings.gguf}: the name must end in .gguf")
    if settings.gguf.exists() and not settings.overwrite:
        raise UsageError(f"{settings.gguf} exists: choose another name, or pass --overwrite")
    try:
        from trainer.export.gguf_file import write_gguf
        from trainer.export.modelfile import write_modelfile
    except ModuleNotFoundError as error:
        if error.name != "gguf":
            raise
        raise TrainerError(f"the package gguf is not installed: {how_to_install('gguf')}") from error
    for note in write_gguf(model, settings.gguf, settings.dtype):
        logger.warning("%s", note)
    write_modelfile(model, settings.gguf)
    size = settings.gguf.stat().st_size
    logger.info("wrote %s (%s, %.1f MB) and %s", settings.gguf, settings.dtype, size / 1e6, "Modelfile")
