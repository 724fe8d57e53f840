"""Which format a file or folder has, and what to do with those that cannot be imported."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from shared.system.regular_file import open_regular
from trainer.errors import TrainerError, UsageError

Format = Literal["cs336", "llama2.c", "litgpt", "meta", "nanochat"]

_ARCHIVES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # torch.save's, new and old
_MAGIC = (0x616B3432).to_bytes(4, "little")


def format_of_path(source: Path) -> tuple[Format | None, Path]:
    """The format of a path by its name and first bytes, and the file or folder to read; None for a state dict.

    Raises:
        TrainerError: It does not exist, or is in a format that is not imported.
    """
    if source.is_dir():
        return _format_of_folder(source)
    if source.name == "lit_model.pth":
        return "litgpt", source.parent
    if source.match("consolidated.*.pth"):
        return "meta", source.parent
    if (number := re.fullmatch(r"model_(\d+)\.pt", source.name)) and source.with_name(
        f"meta_{number[1]}.json"
    ).exists():
        return "nanochat", source
    try:
        with open_regular(source) as file:
            start = file.read(8)
    except OSError as error:
        raise TrainerError(f"{source}: cannot be read: {error.strerror or error}") from error
    if start.startswith(b"GGUF"):
        raise TrainerError(
            f"{source}: GGUF files are not imported, since most are quantized: use the model that it was made from, or "
            "load it in transformers (gguf_file=…) and call save_pretrained"
        )
    if start.startswith(_MAGIC) or (source.suffix == ".bin" and not start.startswith(_ARCHIVES)):
        return "llama2.c", source
    return None, source


def format_of_names(source: Path, names: Iterable[str]) -> Format:
    """The format of a state dict by the names of its tensors.

    Raises:
        TrainerError: It is that of an architecture or a format that is not imported.
    """
    found = set(names)
    if "transformer.h.0.attn.c_q.weight" in found:
        return "nanochat"
    if any(name in found for name in ("transformer.wpe.weight", "wpe.weight", "transformer.h.0.attn.c_attn.weight")):
        raise TrainerError(
            f"{source}: GPT-2's architecture (learned positions, LayerNorm, GELU) is not imported: no model here "
            "computes the same. Train a Llama of its size with `train --preset gpt2-small`, or run it in transformers"
        )
    if any(name.startswith("gpt_neox.") for name in found):
        raise TrainerError(f"{source}: GPT-NeoX's architecture is not imported: no model here computes the same")
    if any(name.startswith("model.layers.") for name in found):
        raise UsageError(
            f"{source}: these are Hugging Face's names: no import is needed for a folder with config.json and "
            "safetensors; for pytorch_model.bin, load it in transformers and call save_pretrained"
        )
    if "tok_embeddings.weight" in found:
        raise UsageError(
            f"{source}: these are Meta's names: name the file consolidated.00.pth beside its params.json, and pass the "
            "folder. A checkpoint of llama2.c's train.py is first exported: `python export.py model.bin --checkpoint …`"
        )
    if "transformer.h.0.attn.qkv.weight" in found or "transformer.h.0.attn.attn.weight" in found:
        raise UsageError(
            f"{source}: these are litgpt's names: pass the folder with lit_model.pth and model_config.yaml"
        )
    return "cs336"


def _format_of_folder(folder: Path) -> tuple[Format, Path]:
    if (folder / "lit_model.pth").exists():
        return "litgpt", folder
    if any(folder.glob("consolidated.*.pth")):
        return "meta", folder
    if models := sorted(folder.glob("model_[0-9]*.pt")):
        return "nanochat", models[-1]
    if (folder / "config.json").exists():
        raise UsageError(f"{folder}: is in Hugging Face's format already: it needs no import")
    raise TrainerError(
        f"{folder}: holds neither lit_model.pth (litgpt), consolidated.00.pth (Meta) nor model_NNNNNN.pt (nanochat); "
        "for other formats, name the file"
    )
