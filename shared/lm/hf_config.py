"""Reading the keys of a Hugging Face `config.json`: what cannot be run exactly is refused by key and value."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from shared.lm.errors import ModelConfigError
from shared.lm.rope_config import Llama3Scaling, RopeConfig

RESEARCH_TYPE = "ownlm_research"
"""The `model_type` of models that Hugging Face's formats cannot express, and the key of what is special about them."""

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    RESEARCH_TYPE: "OwnlmResearchForCausalLM",
}
"""The class of each `model_type` that can be read."""

_SCALING_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class HFConfigReader:
    """Typed access to a parsed `config.json`; the constructor refuses what is not a plain Llama or Qwen3 or ours.

    Attributes:
        family: `"llama"`, `"qwen3"` or `RESEARCH_TYPE`.

    Raises:
        ModelConfigError: From every method, naming the key and the value.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self.family = self._read_family()
        self._refuse_what_we_cannot_run()

    def size(self, key: str) -> int:
        """Return a whole number of at least 1."""
        value = self._config.get(key)
        if value is None:
            raise ModelConfigError(f'"{key}" is missing')
        if type(value) is not int or value < 1:
            raise ModelConfigError(f'"{key}" must be a whole number of at least 1, got {value!r}')
        return value

    def number(self, key: str, *, default: float) -> float:
        """Return a positive number."""
        value = self._config.get(key)
        return default if value is None else _positive(key, value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._config.get(key)
        if value is not None and type(value) is not bool:
            raise ModelConfigError(f'"{key}" must be true or false, got {value!r}')
        return default if value is None else value

    def num_kv_heads(self, num_heads: int) -> int:
        """Return the key and value heads: as many as query heads where a Llama file says nothing."""
        if self._config.get("num_key_value_heads") is None and self.family == "llama":
            return num_heads
        return self.size("num_key_value_heads")

    def head_dim(self, d_model: int, num_heads: int) -> int:
        """Return the channels of a head: `d_model / num_heads` where a Llama file says nothing."""
        if self._config.get("head_dim") is not None or self.family != "llama":
            return self.size("head_dim")
        if d_model % num_heads:
            raise ModelConfigError(
                f'"hidden_size" ({d_model}) is not a multiple of "num_attention_heads" ({num_heads}), '
                'and there is no "head_dim"'
            )
        return d_model // num_heads

    def switches(self, names: Collection[str]) -> dict[str, Any]:
        """Return what a research model's file says of its architecture: all of `names`, and nothing else."""
        values = self._mapping(RESEARCH_TYPE)
        if set(values) != set(names) or type(values.get("qk_norm")) is not bool:
            raise ModelConfigError(
                f'"{RESEARCH_TYPE}" must have the keys {", ".join(names)}, qk_norm true or false; got {values!r}'
            )
        return dict(values)

    def rope(self) -> RopeConfig:
        """Return RoPE's settings from `rope_parameters`, `rope_scaling` and `rope_theta`; they must agree."""
        places = {key: self._mapping(key) for key in ("rope_parameters", "rope_scaling")}
        found = {f"{key}.rope_theta": value.get("rope_theta") for key, value in places.items()}
        found["rope_theta"] = self._config.get("rope_theta")
        thetas = {key: _positive(key, value) for key, value in found.items() if value is not None}
        scalings = {key: _read_scaling(key, value) for key, value in places.items() if value}
        if len(set(thetas.values())) > 1:
            raise ModelConfigError(f"the places of rope_theta disagree: {thetas}")
        if len(set(scalings.values())) > 1:
            raise ModelConfigError(
                f'"rope_parameters" and "rope_scaling" disagree: {places["rope_parameters"]}, {places["rope_scaling"]}'
            )
        return RopeConfig(next(iter(thetas.values()), 10_000.0), next(iter(scalings.values()), None))

    def _read_family(self) -> str:
        family = self._config.get("model_type")
        if family not in ARCHITECTURES:
            raise ModelConfigError(f'"model_type" must be one of {", ".join(map(repr, ARCHITECTURES))}, got {family!r}')
        architectures = self._config.get("architectures")
        if architectures is not None and architectures != [ARCHITECTURES[family]]:
            raise ModelConfigError(
                f'"architectures" must be [{ARCHITECTURES[family]!r}] with model_type {family!r}, got {architectures!r}'
            )
        return str(family)

    def _refuse_what_we_cannot_run(self) -> None:
        def refuse(key: str, reason: str) -> None:
            raise ModelConfigError(f'"{key}" is {self._config[key]!r}: {reason}')

        for key in ("attention_bias", "mlp_bias"):
            if self.flag(key, default=False):
                refuse(key, "models with biases are not supported")
        if self._config.get("hidden_act", "silu") != "silu":
            refuse("hidden_act", "only 'silu' is supported")
        if self.flag("use_sliding_window", default=False):
            refuse("use_sliding_window", "attention over a sliding window is not supported")
        # Qwen3 files carry a window that `use_sliding_window` switches on; in other files the key itself does.
        if self.family != "qwen3" and self._config.get("sliding_window") is not None:
            refuse("sliding_window", "attention over a sliding window is not supported")
        if set(self._config.get("layer_types") or ()) - {"full_attention"}:
            refuse("layer_types", "only layers of 'full_attention' are supported")
        if self._config.get("partial_rotary_factor") not in (None, 1, 1.0):
            refuse("partial_rotary_factor", "rotation of a part of the channels is not supported")
        if self._config.get("quantization_config") is not None:
            refuse("quantization_config", "quantized weights are not supported")
        if self._config.get("auto_map") is not None:
            refuse("auto_map", "the model needs code from its folder, which is never run")

    def _mapping(self, key: str) -> Mapping[str, Any]:
        value = self._config.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ModelConfigError(f'"{key}" must be an object, got {value!r}')
        return value


def _read_scaling(place: str, values: Mapping[str, Any]) -> Llama3Scaling | None:
    """Read `rope_parameters` or `rope_scaling`; None means no scaling."""
    kind = values.get("rope_type", values.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ModelConfigError(f"\"{place}\" has the type {kind!r}: only 'default' and 'llama3' are supported")
    known = {"rope_type", "type", "rope_theta", *(_SCALING_KEYS if kind == "llama3" else ())}
    if unknown := sorted(set(values) - known):
        raise ModelConfigError(
            f'"{place}" has keys that are not supported with the type {kind!r}: {", ".join(unknown)}'
        )
    if kind == "default":
        return None
    for key in _SCALING_KEYS:
        if key not in values:
            raise ModelConfigError(f'"{place}" has the type \'llama3\' but no "{key}"')
    factor, low, high, original = (_positive(f"{place}.{key}", values[key]) for key in _SCALING_KEYS)
    if original != int(original):
        raise ModelConfigError(f'"{place}.original_max_position_embeddings" must be a whole number, got {original!r}')
    return Llama3Scaling(factor, low, high, int(original))


def _positive(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ModelConfigError(f'"{key}" must be a positive number, got {value!r}')
    return float(value)
