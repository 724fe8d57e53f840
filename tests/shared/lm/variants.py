"""Models of every supported variant, made, written and run by transformers: the oracle of what ours compute."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE, CONTEXT_LENGTH = 97, 512
PROMPT_TOKENS, NEW_TOKENS = 150, 48  # beyond the context before scaling, and over several blocks of the engine's cache

FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_LENGTHS = {"factor": 4.0, "original_max_position_embeddings": 64}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 100_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.5},
    "llama3": {"rope_type": "llama3", "rope_theta": 500.0, **_LENGTHS, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 10_000.0, **_LENGTHS},
    "yarn, mscale": {"rope_type": "yarn", "rope_theta": 500.0, **_LENGTHS, "mscale": 0.7, "mscale_all_dim": 1.4},
    "yarn, all keys": {"rope_type": "yarn", "rope_theta": 1e6, **_LENGTHS, "attention_factor": 1.25, "beta_fast": 8.0,
                       "beta_slow": 0.5, "truncate": False},
    "yarn, no range": {"rope_type": "yarn", "rope_theta": 1e6, **_LENGTHS, "beta_fast": 1e-3, "beta_slow": 1e-3},
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """A model that transformers is to write.

    `older` writes RoPE's settings as transformers 4 did. `changes` are to transformers' config.
    """

    family: str
    rope: str = "default"
    tied: bool = False
    num_kv_heads: int = 2
    dtype: str = "float32"
    sharded: bool = False
    older: bool = False
    changes: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> "WrittenVariant":
        """Draw weights, biases and gains too, and write the folder."""
        kind, model_class = FAMILIES[self.family]
        values: dict[str, Any] = {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": self.num_kv_heads,
            "max_position_embeddings": CONTEXT_LENGTH,
            "tie_word_embeddings": self.tied,
            "rope_parameters": dict(ROPES[self.rope]),
            "bos_token_id": None,
            "eos_token_id": None,
            **({"head_dim": 12} if self.family == "qwen3" else {}),
        }
        config = kind(**values | self.changes)
        generator = torch.Generator().manual_seed(len(str(self)))
        model = model_class(config).requires_grad_(False)
        for name, parameter in model.named_parameters():
            # Large weights, so that a mistake anywhere moves the logits far more than rounding does.
            mean, std = (1.0, 0.2) if "norm" in name else (0.0, 0.5 if name.endswith("bias") else 0.2)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std + mean)
        model.to(DTYPES[self.dtype]).save_pretrained(folder, max_shard_size="20KB" if self.sharded else "1GB")
        if self.older:
            _write_older_rope(folder / "config.json")
        return WrittenVariant(folder)


@dataclass(frozen=True)
class WrittenVariant:
    """A folder, and what transformers makes of it in float32."""

    folder: Path

    @cached_property
    def peer(self) -> Any:
        """The model that transformers reads."""
        return AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval().requires_grad_(False)

    @cached_property
    def prompt(self) -> torch.Tensor:
        """int64 [1, PROMPT_TOKENS]."""
        return torch.randint(VOCAB_SIZE, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(7))

    @cached_property
    def logits(self) -> torch.Tensor:
        """Of the prompt, [PROMPT_TOKENS, VOCAB_SIZE]."""
        return self.peer(self.prompt).logits[0]  # type: ignore[no-any-return]

    @cached_property
    def greedy(self) -> list[int]:
        """The NEW_TOKENS most likely ones."""
        output = self.peer.generate(self.prompt, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
        return output[0, PROMPT_TOKENS:].tolist()  # type: ignore[no-any-return]


def _write_older_rope(file: Path) -> None:
    content = json.loads(file.read_text())
    rope = content.pop("rope_parameters")
    content["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    content["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    file.write_text(json.dumps(content))


VARIANTS = {
    "qwen2": Variant("qwen2", sharded=True),
    "qwen2, tied, bfloat16": Variant("qwen2", tied=True, num_kv_heads=1, dtype="bfloat16"),
    "qwen2, yarn": Variant("qwen2", "yarn", dtype="float16", older=True),
    "mistral": Variant("mistral", dtype="bfloat16", sharded=True, changes={"sliding_window": None}),
    "mistral, wide window": Variant("mistral", num_kv_heads=4, changes={"sliding_window": 512, "head_dim": 12}),
    "llama, biases": Variant("llama", num_kv_heads=1, sharded=True, changes={"attention_bias": True}),
    "llama, biases, tied": Variant("llama", tied=True, dtype="float16", changes={"attention_bias": True}),
    "qwen3, biases": Variant("qwen3", tied=True, changes={"attention_bias": True}),
    "smollm2": Variant("llama", tied=True, dtype="bfloat16"),
    "linear": Variant("llama", "linear"),
    "linear, older": Variant("llama", "linear", tied=True, num_kv_heads=4, older=True),
    "llama3, older": Variant("llama", "llama3", older=True),
    "yarn": Variant("llama", "yarn", tied=True, num_kv_heads=1),
    "yarn, mscale": Variant("llama", "yarn, mscale", older=True),
    "yarn, all keys": Variant("qwen3", "yarn, all keys", dtype="bfloat16"),
    "yarn, no range": Variant("mistral", "yarn, no range", changes={"sliding_window": None}),
}
