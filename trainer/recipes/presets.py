"""Published models, by name: their shape, and how they were initialized and trained, each value with its source."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Published:
    """Settings that one source gives."""

    source: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Preset:
    """A published model.

    Attributes:
        shape: Its width, depth, heads, context and whether input and output share a matrix.
        recipe: Everything else that is published: position encoding, initialization, batch, steps, rate.
    """

    shape: Published
    recipe: tuple[Published, ...]


def _shape(
    source: str, /, num_layers: int, d_model: int, num_heads: int, context_length: int, **others: Any
) -> Published:
    sizes = {"num_layers": num_layers, "d_model": d_model, "num_heads": num_heads, "context_length": context_length}
    return Published(source, {**sizes, "tie_embeddings": True, **others})


def _normal(source: str, initializer_range: float = 0.02, **others: Any) -> Published:
    """Normal weights with GPT-2's scaled residual projections, and attention without norms of queries and keys."""
    fixed = {"qk_norm": False, "initialization": "normal", "initializer_range": initializer_range}
    return Published(source, fixed | others)


_ROPE = Published("RoPE in place of learned positions (Su et al. 2021, arXiv 2104.09864)", {"rope_theta": 10_000.0})


def _adamw(beta2: float, weight_decay: float = 0.1, **others: Any) -> dict[str, Any]:
    fixed = {"optimizer": "adamw", "betas": (0.9, beta2), "weight_decay": weight_decay, "clip_grad_norm": 1.0}
    return fixed | others


_CS336 = "CS336 assignment 1, version 1.0.2"


def _cs336() -> Preset:
    """The handout leaves rate, warm-up, betas and weight decay to its readers: these are of a published solution."""
    return Preset(
        _shape(f"{_CS336}, section 7.2", 4, 512, 16, 256, d_ff=1344, tie_embeddings=False),
        (
            Published(f"{_CS336}, section 7.2", {"qk_norm": False, "rope_theta": 10_000.0}),
            Published(f"{_CS336}, section 3.4.1", {"initialization": "xavier"}),
            Published(f"{_CS336}, section 7.2, the 40,960,000 tokens", {"total_batch_size": 32, "max_steps": 5_000}),
            Published(f"{_CS336}, section 5.1", {"data_order": "uniform"}),
            Published(f"{_CS336}, section 4.4", {"schedule": "cosine", "warmup_from_zero": True}),
            Published(
                "github.com/xiamishaonian111/cs336, run_lr_sweep.sh: validation loss 1.61",
                _adamw(0.999, learning_rate=3e-3, warmup_steps=250, min_learning_rate_ratio=0.0),
            ),
        ),
    )


def _gpt2(num_layers: int, d_model: int, learning_rate: float) -> Preset:
    """GPT-2's sizes in the architecture of CS336, as its accounting counts them.

    What the paper on GPT-2 leaves out (rates were "manually tuned") is GPT-3's of the nearest size.
    """
    warmup_steps = 375_000_000 // (1_024 * 1_024)
    rates = {"learning_rate": learning_rate, "warmup_steps": warmup_steps, "min_learning_rate_ratio": 0.1}
    return Preset(
        _shape(
            f"GPT-2 in CS336's architecture ({_CS336}, section 3.6)",
            *(num_layers, d_model, d_model // 64, 1_024),
            d_ff=4 * d_model,
            tie_embeddings=False,
        ),
        (
            Published(f"{_CS336}, section 7.2", {"rope_theta": 10_000.0}),
            _normal("GPT-2's model.py"),
            Published(f"{_CS336}, section 4.3", {"total_batch_size": 1_024, "max_steps": 400_000}),
            Published(
                "GPT-3 (Brown et al. 2020, arXiv 2005.14165), table 2.1 and appendix B",
                _adamw(0.95, schedule="cosine", **rates),
            ),
        ),
    )


def _stories(sizes: tuple[int, int, int, int], training: Published, **others: int) -> Preset:
    """A model of llama2.c, with its layers, width, heads and context."""
    model = _normal("llama2.c's model.py", rope_theta=10_000.0)
    return Preset(_shape("llama2.c's README, models", *sizes, **others), (model, training))


def _llama2c(source: str, beta2: float = 0.95, **settings: Any) -> Published:
    """llama2.c's train.py, whose defaults a run may change."""
    schedule = {"schedule": "cosine", "warmup_steps": 1_000, "warmup_from_zero": True, "min_learning_rate_ratio": 0.0}
    defaults = {"total_batch_size": 512, "max_steps": 100_000, "learning_rate": 5e-4, "dropout": 0.0}
    return Published(source, _adamw(beta2) | schedule | defaults | settings)


PRESETS: Mapping[str, Preset] = {
    "stories260k": _stories(
        (5, 64, 8, 512),
        _llama2c(
            "llama2.c's doc/stories260K.md",
            beta2=0.99,
            total_batch_size=128,
            learning_rate=1e-3,
            dropout=0.05,
            weight_decay=0.01,
        ),
        d_ff=172,
        num_kv_heads=4,
    ),
    "stories15m": _stories((6, 288, 6, 256), _llama2c("llama2.c's train.py"), d_ff=768),
    "stories42m": _stories((8, 512, 8, 1_024), _llama2c("llama2.c's train.py, its defaults"), d_ff=1_376),
    "stories110m": _stories(
        (12, 768, 12, 1_024),
        _llama2c(
            "llama2.c's README, training", total_batch_size=128, max_steps=200_000, learning_rate=4e-4, dropout=0.1
        ),
        d_ff=2_048,
    ),
    "tinystories-33m": Preset(
        _shape("TinyStories-33M (Eldan and Li 2023, arXiv 2305.07759), its config.json", 4, 768, 16, 512),
        (
            _normal("TinyStories-33M, its config.json"),
            _ROPE,
            Published(
                "TinyStories-33M, its model card",
                _adamw(0.95, total_batch_size=80 * 16, learning_rate=5e-4, schedule="constant", warmup_steps=0),
            ),
        ),
    ),
    "cs336": _cs336(),
    "nanogpt-char": Preset(
        _shape("nanoGPT's config/train_shakespeare_char.py", 6, 384, 6, 256),
        (
            _normal("nanoGPT's model.py"),
            _ROPE,
            Published(
                "nanoGPT's config/train_shakespeare_char.py",
                _adamw(
                    0.99,
                    total_batch_size=64,
                    max_steps=5_000,
                    learning_rate=1e-3,
                    min_learning_rate_ratio=0.1,
                    warmup_steps=100,
                    dropout=0.2,
                ),
            ),
            Published("nanoGPT's train.py", {"schedule": "cosine", "data_order": "uniform"}),
        ),
    ),
    "smollm-135m": Preset(
        _shape("SmolLM-135M's config.json", 30, 576, 9, 2_048, num_kv_heads=3, d_ff=1_536),
        (
            _normal("SmolLM's config_smollm1_135M.yaml", initializer_range=0.0416, rope_theta=10_000.0),
            Published(
                "SmolLM's config_smollm1_135M.yaml",
                _adamw(
                    0.95,
                    weight_decay=0.01,
                    total_batch_size=512,
                    max_steps=600_000,
                    learning_rate=3e-3,
                    schedule="wsd",
                    decay_share=1 / 6,
                    decay_shape="1-sqrt",
                    min_learning_rate_ratio=0.0,
                    warmup_steps=5_000,
                ),
            ),
        ),
    ),
    "gpt2-small": _gpt2(12, 768, 6e-4),
    "gpt2-medium": _gpt2(24, 1_024, 3e-4),
    "gpt2-large": _gpt2(36, 1_280, 2.5e-4),
    "gpt2-xl": _gpt2(48, 1_600, 2e-4),
}
