"""The adapter of a run of LoRA, in the format of Hugging Face's PEFT."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from shared.lm.json_file import write_json
from shared.system.checksums import write_checksums
from shared.system.folder_swap import replace_folder
from trainer.settings.train import TrainSettings

ADAPTER_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."  # PEFT's own module, and the model in it


def write_adapter(
    folder: Path, weights: Mapping[str, Tensor], settings: TrainSettings, provenance: Mapping[str, Any]
) -> None:
    """Write a folder that `PeftModel.from_pretrained` opens on the model that the run started from.

    Args:
        folder: Written whole or not at all; an earlier adapter is replaced.
        weights: From `adapter_weights`.
        settings: The run's.
        provenance: How it was trained, and from which weights; for `ownlm.json`.

    Raises:
        OSError: it cannot be written.
    """
    lora = settings.lora
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(settings.parent.init),
        "r": lora.lora_rank,
        "lora_alpha": lora.lora_alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted({name.split(".")[-2] for name in weights}),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    named = {
        _PREFIX + re.sub(r"(lora_[AB])$", r"\1.weight", name): weight.contiguous() for name, weight in weights.items()
    }
    with replace_folder(folder) as temporary:
        save_file(named, temporary / _WEIGHTS, metadata={"format": "pt"})
        (temporary / _WEIGHTS).chmod(0o644)
        write_json(temporary / ADAPTER_CONFIG, config)
        write_json(temporary / "ownlm.json", {"training": dict(provenance)})
        write_checksums(temporary)
