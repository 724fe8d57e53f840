"""Published model shapes, by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Settings of the model, and their source."""

    settings: Mapping[str, Any]
    source: str


def _gpt2(num_layers: int, d_model: int) -> Preset:
    """SwiGLU's three matrices have 8/3 of d_model (the default), as many weights as GPT-2's two of 4."""
    settings = {"num_layers": num_layers, "d_model": d_model, "num_heads": d_model // 64, "context_length": 1024}
    return Preset(settings, "GPT-2 (Radford et al. 2019, table 2)")


def _stories(num_layers: int, d_model: int, num_heads: int, d_ff: int, context_length: int, **others: int) -> Preset:
    settings = {
        "num_layers": num_layers,
        "d_model": d_model,
        "num_heads": num_heads,
        "d_ff": d_ff,
        "context_length": context_length,
        **others,
    }
    return Preset(settings, "llama2.c's models of TinyStories (its README)")


PRESETS: Mapping[str, Preset] = {
    "stories260k": _stories(5, 64, 8, 172, 512, num_kv_heads=4),
    "stories15m": _stories(6, 288, 6, 768, 256),
    "stories42m": _stories(8, 512, 8, 1376, 1024),
    "stories110m": _stories(12, 768, 12, 2048, 1024),
    "tinystories-33m": Preset(
        {"num_layers": 4, "d_model": 768, "num_heads": 16, "context_length": 512},
        "TinyStories-33M (Eldan and Li 2023, arXiv 2305.07759)",
    ),
    "cs336": Preset(
        {
            "num_layers": 4,
            "d_model": 512,
            "num_heads": 16,
            "d_ff": 1344,
            "context_length": 256,
            "tie_embeddings": False,
        },
        "TinyStories of Stanford CS336, assignment 1",
    ),
    "nanogpt-char": Preset(
        {"num_layers": 6, "d_model": 384, "num_heads": 6, "context_length": 256},
        "nanoGPT's config/train_shakespeare_char.py",
    ),
    "smollm-135m": Preset(
        {
            "num_layers": 30,
            "d_model": 576,
            "num_heads": 9,
            "num_kv_heads": 3,
            "d_ff": 1536,
            "context_length": 2048,
        },
        "SmolLM-135M (Hugging Face, its config.json)",
    ),
    "gpt2-small": _gpt2(12, 768),
    "gpt2-medium": _gpt2(24, 1024),
    "gpt2-large": _gpt2(36, 1280),
    "gpt2-xl": _gpt2(48, 1600),
}
