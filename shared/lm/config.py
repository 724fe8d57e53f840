"""The architecture of a model, read from and written to a Hugging Face `config.json`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from shared.lm.errors import ModelConfigError
from shared.lm.hf_config import ARCHITECTURES, RESEARCH_TYPE, HFConfigReader
from shared.lm.hf_rope import rope_to_hf
from shared.lm.rope_config import RopeConfig
from shared.system.errors import short_repr

AttentionBias = Literal["", "qkv", "qkvo"]
Norm = Literal["pre", "post", "none"]
Position = Literal["rope", "none"]
Activation = Literal["swiglu", "silu", "relu2"]


@dataclass(frozen=True)
class ModelConfig:
    """A Llama-style decoder (Llama, Mistral, Qwen2, Qwen3): pre-norm RMSNorm, RoPE, grouped-query attention, SwiGLU.

    The last five fields are for experiments on the architecture. A model that uses one is a *research model*: no
    format of Hugging Face can express it, so only the trainer opens it.

    Attributes:
        vocab_size: Rows of the embedding; at least the tokenizer's ids, with padding rows beyond them.
        context_length: The most tokens of a sequence, prompt and output together.
        d_model: Width of the residual stream.
        num_layers: Number of blocks.
        num_heads: Query heads of a block.
        num_kv_heads: Key and value heads; divides `num_heads`.
        head_dim: Channels of a head; even. `num_heads * head_dim` need not be `d_model`.
        d_ff: Hidden width of the feed-forward layer.
        norm_eps: Added to the mean square in RMSNorm.
        qk_norm: RMSNorm on each head's queries and keys before RoPE, as in Qwen3.
        attention_bias: The projections that have a bias: none, query, key and value as in Qwen2, or output too.
        tie_embeddings: The output projection shares the weights of the embedding.
        rope: How positions are encoded.
        initializer_range: Standard deviation of the initial weights.
        norm: "pre": RMSNorm before each sublayer and at the end. "post": after each residual sum instead, as in the
            first Transformer (Vaswani et al. 2017, arXiv 1706.03762), with none at the end. "none": no norm.
        position: "none" leaves the order of tokens to the causal mask (Kazemnejad et al. 2023, arXiv 2305.19466).
        activation: "silu" and "relu2" are feed-forward layers of two matrices, without SwiGLU's gate; "relu2" squares
            a ReLU (So et al. 2021, "Primer", arXiv 2109.08668).
        logit_soft_cap: Logits x become cap * tanh(x / cap), as the final ones of Gemma 2 do (arXiv 2408.00118, section
            2; 30 there); 0 for none.
        value_residual: The values of every layer except the first are mixed with the first layer's by two learned
            factors (Zhou et al. 2024, "Value Residual Learning", arXiv 2410.17897: Learnable-ResFormer).

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
    attention_bias: AttentionBias = ""
    tie_embeddings: bool = True
    rope: RopeConfig = field(default_factory=RopeConfig)
    initializer_range: float = 0.02
    norm: Norm = "pre"
    position: Position = "rope"
    activation: Activation = "swiglu"
    logit_soft_cap: float = 0.0
    value_residual: bool = False

    def __post_init__(self) -> None:
        for name, choices in _SWITCHES.items():
            if getattr(self, name) not in choices:
                got = short_repr(getattr(self, name))
                raise ModelConfigError(f"{name} must be one of {', '.join(choices)}, got {got}")
        if self.attention_bias not in get_args(AttentionBias):
            raise ModelConfigError(f"attention_bias must be 'qkv', 'qkvo' or empty, got {self.attention_bias!r}")
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= largest:
                raise ModelConfigError(f"{name} must be a whole number from 1 to {largest}, got {short_repr(value)}")
        if not _LEAST_EPS <= self.norm_eps <= 1:
            raise ModelConfigError(f"norm_eps must be a number from {_LEAST_EPS:g} to 1, got {self.norm_eps!r}")
        if not (math.isfinite(self.initializer_range) and self.initializer_range > 0):
            raise ModelConfigError(f"initializer_range must be a positive number, got {self.initializer_range!r}")
        self._check_optional_switches()
        if self.num_heads % self.num_kv_heads:
            raise ModelConfigError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise ModelConfigError(f"head_dim must be even, since RoPE rotates pairs of channels, got {self.head_dim}")
        if self.attention_bias == "qkv" and self.qk_norm:
            raise ModelConfigError(
                "qk_norm cannot be combined with attention_bias 'qkv': no architecture of Hugging Face has both"
            )
        if self.attention_bias and self.research_features:
            raise ModelConfigError(f"attention_bias cannot be combined with {', '.join(self.research_features)}")
        if self.family == "llama" and self.d_model % self.num_heads:
            raise ModelConfigError(
                f"d_model ({self.d_model}) must be a multiple of num_heads ({self.num_heads}), even where head_dim is "
                "given: transformers refuses other Llama models"
            )

    def _check_optional_switches(self) -> None:
        cap = self.logit_soft_cap
        if isinstance(cap, bool) or not isinstance(cap, int | float) or not (cap == 0 or 1e-30 <= cap <= 1e30):
            raise ModelConfigError(f"logit_soft_cap must be 0 or a number from 1e-30 to 1e30, got {short_repr(cap)}")
        if type(self.value_residual) is not bool:
            raise ModelConfigError(f"value_residual must be true or false, got {short_repr(self.value_residual)}")
        if self.value_residual and self.num_layers == 1:
            raise ModelConfigError("value_residual needs num_layers of at least 2: it adds the first layer's values")

    @property
    def family(self) -> str:
        """The Hugging Face `model_type`; a Mistral without a sliding window is a Llama."""
        if self.research_features:
            return RESEARCH_TYPE
        if self.attention_bias == "qkv":
            return "qwen2"
        return "qwen3" if self.qk_norm else "llama"

    @property
    def attention_biases(self) -> dict[str, int]:
        """The output widths of the projections that have a bias, by their letters q, k, v and o."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        outputs = {"q": queries, "k": keys, "v": keys, "o": self.d_model}
        return {name: outputs[name] for name in self.attention_bias}

    @property
    def num_parameters(self) -> int:
        """The number of parameters; a tied embedding counts once."""
        return sum(self.parameters_by_part.values())

    @property
    def parameters_by_part(self) -> dict[str, int]:
        """The number of parameters of each part, over all layers; a tied output projection has none of its own."""
        attention = 2 * self.d_model * self.head_dim * (self.num_heads + self.num_kv_heads)
        feed_forward = (3 if self.activation == "swiglu" else 2) * self.d_model * self.d_ff
        norms = (0 if self.norm == "none" else 2 * self.d_model) + (2 * self.head_dim if self.qk_norm else 0)
        return {
            "embedding": self.vocab_size * self.d_model,
            "attention": self.num_layers * (attention + sum(self.attention_biases.values())) + self.value_factors,
            "feed_forward": self.num_layers * feed_forward,
            "norms": self.num_layers * norms + (self.d_model if self.norm == "pre" else 0),
            "output": 0 if self.tie_embeddings else self.vocab_size * self.d_model,
        }

    @property
    def value_factors(self) -> int:
        """The number of learned factors of the value residual: two for each layer except the first."""
        return 2 * (self.num_layers - 1) if self.value_residual else 0

    @property
    def research_features(self) -> tuple[str, ...]:
        """Descriptions of what Hugging Face's formats cannot express; empty for most models."""
        said = {
            ("norm", "post"): "post-norm",
            ("norm", "none"): "no RMSNorm",
            ("position", "none"): "no position encoding",
            ("activation", "silu"): "SiLU without a gate",
            ("activation", "relu2"): "ReLU squared",
            ("value_residual", True): "value residuals",
        }
        cap = (f"logits capped at {self.logit_soft_cap:g}",) if self.logit_soft_cap else ()
        return tuple(words for (name, value), words in said.items() if getattr(self, name) == value) + cap

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelConfig":
        """Read the `config.json` of a Llama, Mistral, Qwen2 or Qwen3, or a research model's.

        Args:
            config: The parsed file. RoPE's settings are read from `rope_parameters` (transformers 5) and from the older
                `rope_theta` and `rope_scaling`.

        Raises:
            ModelConfigError: This package cannot run the model exactly; names the key and value.
        """
        reader = HFConfigReader(config)
        qk_norm = reader.family == "qwen3"
        switches: dict[str, Any] = {}
        if reader.family == RESEARCH_TYPE:
            switches = reader.switches(("qk_norm", *_SWITCHES), _OPTIONAL_SWITCHES)
            qk_norm = switches.pop("qk_norm")
        sizes: dict[str, Any] = {name: reader.size(key, _LARGEST[name]) for name, key in _SIZES.items()}
        return cls(
            **sizes,
            num_kv_heads=reader.num_kv_heads(sizes["num_heads"]),
            head_dim=reader.head_dim(sizes["d_model"], sizes["num_heads"]),
            norm_eps=reader.number("rms_norm_eps", default=1e-6),
            qk_norm=qk_norm,
            attention_bias=reader.attention_bias(),
            tie_embeddings=reader.flag("tie_word_embeddings", default=False),
            rope=reader.rope(),
            initializer_range=reader.number("initializer_range", default=0.02),
            **switches,
        )

    def to_hf(self) -> dict[str, Any]:
        """Return the `config.json` that transformers reads, without token ids and dtype.

        A research model has a `model_type` of its own, so that transformers refuses it rather than run it wrong.
        """
        family, rope = self.family, rope_to_hf(self.rope)
        switches = {name: getattr(self, name) for name in ("qk_norm", *_SWITCHES)}
        switches |= {name: value for name in _OPTIONAL_SWITCHES if (value := getattr(self, name))}
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
            **({} if self.activation == "relu2" else {"hidden_act": "silu"}),
            "rms_norm_eps": self.norm_eps,
            **({} if family == "qwen2" else {"attention_bias": bool(self.attention_bias)}),
            "attention_dropout": 0.0,
            **({"mlp_bias": False} if family == "llama" else {"use_sliding_window": False}),
            "tie_word_embeddings": self.tie_embeddings,
            "rope_theta": self.rope.theta,
            "rope_scaling": None if self.rope.scaling is None else rope,
            "rope_parameters": {**rope, "rope_theta": self.rope.theta},
            "initializer_range": self.initializer_range,
            "use_cache": True,
        }


_LEAST_EPS = 1e-30  # float32 holds it

_SWITCHES = {"norm": get_args(Norm), "position": get_args(Position), "activation": get_args(Activation)}
# Only in the files of models that use them, so that those of earlier releases are still read.
_OPTIONAL_SWITCHES = ("logit_soft_cap", "value_residual")

# The keys of a `config.json`, in the order of our names.
_SIZES = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "d_model": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "d_ff": "intermediate_size",
}

# Far above any model, and low enough that a damaged file is refused before memory is allocated.
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
