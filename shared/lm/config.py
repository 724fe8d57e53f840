"""The architecture of a model, and its form in a Hugging Face `config.json`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from shared.lm.errors import ModelConfigError
from shared.lm.hf_config import ARCHITECTURES, RESEARCH_TYPE, HFConfigReader
from shared.lm.rope_config import RopeConfig

Norm = Literal["pre", "post", "none"]
Position = Literal["rope", "none"]
Activation = Literal["swiglu", "silu"]


@dataclass(frozen=True)
class ModelConfig:
    """A Llama-shaped decoder: pre-norm RMSNorm, RoPE, grouped-query attention, SwiGLU.

    The last three switches are for experiments on the architecture. A model that uses one is a *research model*: no
    format of Hugging Face can express it, so only the trainer opens it.

    Attributes:
        vocab_size: Rows of the embedding; may exceed the tokenizer's ids (padding), never fall short of them.
        context_length: The most tokens a sequence may have, prompt and output together.
        d_model: Width of the residual stream.
        num_layers: Number of blocks.
        num_heads: Query heads of a block.
        num_kv_heads: Key and value heads; divides `num_heads`.
        head_dim: Channels of a head; even. `num_heads * head_dim` need not be `d_model`.
        d_ff: Inner width of the feed-forward part.
        norm_eps: Added to the mean square in RMSNorm.
        qk_norm: RMSNorm on each head's queries and keys before RoPE, as in Qwen3.
        tie_embeddings: The output projection is the embedding itself.
        rope: How positions are encoded.
        initializer_range: Standard deviation of the initial weights.
        norm: RMSNorm before each part of a block and at the end; after each residual sum instead, as in the first
            Transformer (Vaswani et al. 2017, arXiv 1706.03762), where there is none at the end; or nowhere.
        position: "none" leaves the order of tokens to the causal mask (Kazemnejad et al. 2023, arXiv 2305.19466).
        activation: "silu" is a feed-forward part of two matrices, without SwiGLU's gate.

    Raises:
        ModelConfigError: A value out of range, or values that contradict each other.
    """

    vocab_size: int
    context_length: int
    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    d_ff: int
    norm_eps: float = 1e-5
    qk_norm: bool = False
    tie_embeddings: bool = True
    rope: RopeConfig = field(default_factory=RopeConfig)
    initializer_range: float = 0.02
    norm: Norm = "pre"
    position: Position = "rope"
    activation: Activation = "swiglu"

    def __post_init__(self) -> None:
        for name, choices in _SWITCHES.items():
            if getattr(self, name) not in choices:
                raise ModelConfigError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= largest:
                raise ModelConfigError(f"{name} must be a whole number from 1 to {largest}, got {value!r}")
        for name in ("norm_eps", "initializer_range"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ModelConfigError(f"{name} must be a positive number, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise ModelConfigError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise ModelConfigError(f"head_dim must be even, since RoPE turns channels in pairs, got {self.head_dim}")
        if not self.qk_norm and self.d_model % self.num_heads:
            raise ModelConfigError(
                f"d_model ({self.d_model}) must be a multiple of num_heads ({self.num_heads}), even where head_dim is "
                "given: transformers opens no Llama folder without it"
            )

    @property
    def num_parameters(self) -> int:
        """The number of weights, a tied embedding counted once."""
        attention = 2 * self.d_model * self.head_dim * (self.num_heads + self.num_kv_heads)
        norms = (0 if self.norm == "none" else 2 * self.d_model) + (2 * self.head_dim if self.qk_norm else 0)
        block = attention + (3 if self.activation == "swiglu" else 2) * self.d_model * self.d_ff + norms
        embeddings = self.vocab_size * self.d_model * (1 if self.tie_embeddings else 2)
        return embeddings + self.num_layers * block + (self.d_model if self.norm == "pre" else 0)

    @property
    def research_features(self) -> tuple[str, ...]:
        """What Hugging Face's formats cannot express, in words; empty for a model that they can."""
        said = {
            ("norm", "post"): "post-norm",
            ("norm", "none"): "no RMSNorm",
            ("position", "none"): "no position encoding",
            ("activation", "silu"): "SiLU without a gate",
        }
        return tuple(words for (name, value), words in said.items() if getattr(self, name) == value)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelConfig":
        """Read a Llama or Qwen3 `config.json`, or a research model's.

        Args:
            config: The parsed file. Both places of RoPE's settings are read: `rope_parameters` (transformers 5) and the
                older `rope_theta` and `rope_scaling`.

        Raises:
            ModelConfigError: The key and value that make this a model which this package cannot run exactly.
        """
        reader = HFConfigReader(config)
        qk_norm = reader.family == "qwen3"
        switches: dict[str, Any] = {}
        if reader.family == RESEARCH_TYPE:
            switches = reader.switches(("qk_norm", *_SWITCHES))
            qk_norm = switches.pop("qk_norm")
        d_model, num_heads = reader.size("hidden_size"), reader.size("num_attention_heads")
        return cls(
            vocab_size=reader.size("vocab_size"),
            context_length=reader.size("max_position_embeddings"),
            d_model=d_model,
            num_layers=reader.size("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=reader.num_kv_heads(num_heads),
            head_dim=reader.head_dim(d_model, num_heads),
            d_ff=reader.size("intermediate_size"),
            norm_eps=reader.number("rms_norm_eps", default=1e-6),
            qk_norm=qk_norm,
            tie_embeddings=reader.flag("tie_word_embeddings", default=False),
            rope=reader.rope(),
            initializer_range=reader.number("initializer_range", default=0.02),
            **switches,
        )

    def to_hf(self) -> dict[str, Any]:
        """Return the `config.json` that transformers reads.

        A research model's has a `model_type` of its own, so that it is refused there rather than run wrong.

        Token ids and the dtype are not the architecture's: whoever writes the folder adds them.
        """
        rope: dict[str, Any] = {"rope_type": "default"}
        if self.rope.scaling is not None:
            rope = {
                "rope_type": "llama3",
                "factor": self.rope.scaling.factor,
                "low_freq_factor": self.rope.scaling.low_freq_factor,
                "high_freq_factor": self.rope.scaling.high_freq_factor,
                "original_max_position_embeddings": self.rope.scaling.original_context_length,
            }
        family = RESEARCH_TYPE if self.research_features else "qwen3" if self.qk_norm else "llama"
        switches = {name: getattr(self, name) for name in ("qk_norm", *_SWITCHES)}
        return {
            "architectures": [ARCHITECTURES[family]],
            "model_type": family,
            **({RESEARCH_TYPE: switches} if self.research_features else {}),
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.context_length,
            "hidden_size": self.d_model,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.d_ff,
            "hidden_act": "silu",
            "rms_norm_eps": self.norm_eps,
            "attention_bias": False,
            "attention_dropout": 0.0,
            **({"use_sliding_window": False} if self.qk_norm else {"mlp_bias": False}),
            "tie_word_embeddings": self.tie_embeddings,
            "rope_theta": self.rope.theta,
            "rope_scaling": None if self.rope.scaling is None else rope,
            "rope_parameters": {**rope, "rope_theta": self.rope.theta},
            "initializer_range": self.initializer_range,
            "use_cache": True,
        }


_SWITCHES = {"norm": get_args(Norm), "position": get_args(Position), "activation": get_args(Activation)}

# Far above any model, and low enough that a damaged file is refused before anything of its size is built.
_LARGEST = {
    "vocab_size": 1 << 24,
    "context_length": 1 << 24,
    "d_model": 1 << 20,
    "num_layers": 1 << 12,
    "num_heads": 1 << 16,
    "num_kv_heads": 1 << 16,
    "head_dim": 1 << 16,
    "d_ff": 1 << 24,
}
