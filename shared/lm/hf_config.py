"""Reading the keys of a Hugging Face `config.json`; errors name the key and value that cannot be run exactly."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from shared.lm.errors import ModelConfigError
from shared.lm.hf_rope import mapping, positive, read_rope
from shared.lm.rope_config import RopeConfig
from shared.system.errors import short_repr

RESEARCH_TYPE = "ownlm_research"
"""The `model_type` of models that Hugging Face's formats cannot express, and the key of their special fields."""

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    RESEARCH_TYPE: "OwnlmResearchForCausalLM",
}
"""The class of each `model_type` that can be read."""

# Without "head_dim", these families use the width divided by the number of heads; others have a default.
_DERIVED_HEAD_DIM = ("llama", "mistral", "qwen2")


class HFConfigReader:
    """Typed access to a parsed `config.json`; the constructor refuses models that cannot be run exactly.

    Attributes:
        family: The `model_type`, one of `ARCHITECTURES`.

    Raises:
        ModelConfigError: From every method, naming the key and the value.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self.family = self._read_family()
        self._refuse_what_we_cannot_run()

    def size(self, key: str, most: int | None = None) -> int:
        """Return a whole number from 1 to `most`."""
        value = self._config.get(key)
        if value is None:
            raise ModelConfigError(f'"{key}" is missing')
        if type(value) is not int or value < 1 or (most is not None and value > most):
            limits = "of at least 1" if most is None else f"from 1 to {most}"
            raise ModelConfigError(f'"{key}" must be a whole number {limits}, got {short_repr(value)}')
        return value

    def number(self, key: str, *, default: float) -> float:
        """Return a positive number."""
        value = self._config.get(key)
        return default if value is None else positive(key, value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._config.get(key)
        if value is not None and type(value) is not bool:
            raise ModelConfigError(f'"{key}" must be true or false, got {short_repr(value)}')
        return default if value is None else value

    def num_kv_heads(self, num_heads: int) -> int:
        """Return the number of key and value heads; in a Llama, it defaults to that of query heads."""
        if self._config.get("num_key_value_heads") is None and self.family == "llama":
            return num_heads
        return self.size("num_key_value_heads")

    def head_dim(self, d_model: int, num_heads: int) -> int:
        """Return the channels of a head; in most families, they default to `d_model / num_heads`."""
        if self._config.get("head_dim") is not None or self.family not in _DERIVED_HEAD_DIM:
            return self.size("head_dim")
        if d_model % num_heads:
            raise ModelConfigError(
                f'"hidden_size" ({d_model}) is not a multiple of "num_attention_heads" ({num_heads}), '
                'and there is no "head_dim"'
            )
        return d_model // num_heads

    def attention_bias(self) -> Literal["", "qkv", "qkvo"]:
        """Return which projections have a bias: always "qkv" in Qwen2, all or none in Llama and Qwen3."""
        if self.family == "qwen2":
            return "qkv"
        return "qkvo" if self.flag("attention_bias", default=False) else ""

    def switches(self, names: Collection[str], optional: Collection[str]) -> dict[str, Any]:
        """Return the special fields of a research model: all of `names`, those of `optional` it has, and no others."""
        values = mapping(self._config, RESEARCH_TYPE)
        if set(values) - set(optional) != set(names) or type(values.get("qk_norm")) is not bool:
            raise ModelConfigError(
                f'"{RESEARCH_TYPE}" must have the keys {", ".join(names)}, qk_norm true or false, and may have '
                f"{', '.join(optional)}; got {short_repr(values)}"
            )
        return dict(values)

    def rope(self) -> RopeConfig:
        """Return RoPE's settings, see `read_rope`."""
        return read_rope(self._config)

    def _read_family(self) -> str:
        family = self._config.get("model_type")
        if not isinstance(family, str) or family not in ARCHITECTURES:
            known = ", ".join(map(repr, ARCHITECTURES))
            raise ModelConfigError(f'"model_type" must be one of {known}, got {short_repr(family)}')
        architectures = self._config.get("architectures")
        if architectures is not None and architectures != [ARCHITECTURES[family]]:
            raise ModelConfigError(
                f'"architectures" must be [{ARCHITECTURES[family]!r}] with model_type {family!r}, '
                f"got {short_repr(architectures)}"
            )
        return family

    def _refuse_what_we_cannot_run(self) -> None:
        if self.flag("mlp_bias", default=False):
            self._refuse("mlp_bias", "biases in the feed-forward layer are not supported")
        if self.family in ("mistral", RESEARCH_TYPE) and self.flag("attention_bias", default=False):
            self._refuse("attention_bias", f"models of the type {self.family!r} have no biases")
        if self._config.get("hidden_act", "silu") != "silu":
            self._refuse("hidden_act", "only 'silu' is supported")
        self._refuse_sliding_windows()
        if self._config.get("partial_rotary_factor") not in (None, 1, 1.0):
            self._refuse("partial_rotary_factor", "rotating only some channels is not supported")
        if self._config.get("quantization_config") is not None:
            self._refuse("quantization_config", "quantized weights are not supported")
        if self._config.get("auto_map") is not None:
            self._refuse("auto_map", "the model needs code from its folder, which is never executed")

    def _refuse_sliding_windows(self) -> None:
        reason = "sliding-window attention is not supported"
        if self.flag("use_sliding_window", default=False):
            self._refuse("use_sliding_window", reason)
        layers = self._config.get("layer_types")
        if layers is not None and not isinstance(layers, list):
            raise ModelConfigError(f'"layer_types" must be a list, got {short_repr(layers)}')
        if any(layer != "full_attention" for layer in layers or ()):
            self._refuse("layer_types", "only 'full_attention' layers are supported")
        if self.family == "mistral" and "sliding_window" not in self._config:
            raise ModelConfigError(
                '"sliding_window" is missing, which means a window of 4096 tokens in a Mistral: ' + reason
            )
        # Qwen's files carry a window that `use_sliding_window` switches on; in other files the key itself does.
        window = self._config.get("sliding_window")
        if self.family in ("qwen2", "qwen3") or window is None:
            return
        if self.family != "mistral" or self.size("sliding_window") < self.size("max_position_embeddings"):
            self._refuse("sliding_window", reason)

    def _refuse(self, key: str, reason: str) -> None:
        raise ModelConfigError(f'"{key}" is {short_repr(self._config[key])}: {reason}')
