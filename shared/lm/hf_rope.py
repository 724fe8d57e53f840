"""RoPE's settings in a Hugging Face `config.json`, read and written."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from shared.lm.errors import ModelConfigError
from shared.lm.rope_config import LinearScaling, Llama3Scaling, RopeConfig, RopeScaling, YarnScaling
from shared.system.errors import short_repr

ORIGINAL = "original_max_position_embeddings"


def read_rope(config: Mapping[str, Any]) -> RopeConfig:
    """Read RoPE's settings from `rope_parameters` (transformers 5), `rope_scaling` and `rope_theta`; they must agree.

    Raises:
        ModelConfigError: Names the key and the value that is wrong or not supported.
    """
    places = {key: mapping(config, key) for key in ("rope_parameters", "rope_scaling")}
    found = {f"{key}.rope_theta": value.get("rope_theta") for key, value in places.items()}
    found["rope_theta"] = config.get("rope_theta")
    thetas = {key: positive(key, value) for key, value in found.items() if value is not None}
    scalings = {key: _read_scaling(key, value, config) for key, value in places.items() if value}
    if len(set(thetas.values())) > 1:
        raise ModelConfigError(f"the values of rope_theta disagree: {thetas}")
    if len(set(scalings.values())) > 1:
        raise ModelConfigError(f'"rope_parameters" and "rope_scaling" disagree: {short_repr(places)}')
    return RopeConfig(next(iter(thetas.values()), 10_000.0), next(iter(scalings.values()), None))


def rope_to_hf(rope: RopeConfig) -> dict[str, Any]:
    """Return the content of `rope_scaling`, which equals `rope_parameters` without the theta."""
    scaling = rope.scaling
    if scaling is None:
        return {"rope_type": "default"}
    if isinstance(scaling, LinearScaling):
        return {"rope_type": "linear", "factor": scaling.factor}
    both = {"factor": scaling.factor, ORIGINAL: scaling.original_context_length}
    if isinstance(scaling, Llama3Scaling):
        factors = {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
        return {"rope_type": "llama3", **both, **factors}
    betas = {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "truncate": scaling.truncate}
    # Not all programs know this key, so it is written only if it has an effect.
    attention = {} if scaling.attention_factor is None else {"attention_factor": scaling.attention_factor}
    return {"rope_type": "yarn", **both, **betas, **attention}


def mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object of a parsed `config.json`; an empty one if it is missing."""
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ModelConfigError(f'"{key}" must be an object, got {short_repr(value)}')
    return value


def positive(key: str, value: object) -> float:
    """Return a positive number that a float can hold."""
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # whole numbers in JSON have no upper limit
        number = math.inf
    if not (math.isfinite(number) and number > 0):
        raise ModelConfigError(f'"{key}" must be a positive number, got {short_repr(value)}')
    return number


class _Values:
    """Typed access to the object at `place`."""

    def __init__(self, place: str, values: Mapping[str, Any]) -> None:
        self._place = place
        self._values = values

    def number(self, key: str, *, default: object = None) -> float:
        """Return a positive number."""
        if key not in self._values and default is None:
            kind = self._values.get("rope_type", self._values.get("type"))
            raise ModelConfigError(f'"{self._place}" has the type {kind!r} but no "{key}"')
        return positive(f"{self._place}.{key}", self._values.get(key, default))

    def whole(self, key: str, *, default: object = None) -> int:
        """Return a whole number of at least 1."""
        number = self.number(key, default=default)
        if number != int(number):
            raise ModelConfigError(f'"{self._place}.{key}" must be a whole number, got {number!r}')
        return int(number)

    def optional(self, key: str) -> float | None:
        """Return a positive number, or None if it is missing."""
        return None if self._values.get(key) is None else self.number(key)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._values.get(key, default)
        if type(value) is not bool:
            raise ModelConfigError(f'"{self._place}.{key}" must be true or false, got {short_repr(value)}')
        return value


def _linear(values: _Values, _config: Mapping[str, Any]) -> LinearScaling:
    return LinearScaling(values.number("factor"))


def _llama3(values: _Values, _config: Mapping[str, Any]) -> Llama3Scaling:
    factor, low, high = (values.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    return Llama3Scaling(factor, low, high, values.whole(ORIGINAL))


def _yarn(values: _Values, config: Mapping[str, Any]) -> YarnScaling:
    """As in transformers, the original context defaults to the context of the model."""
    factor = values.number("factor")
    attention_factor = values.optional("attention_factor")
    of_one, of_all = values.optional("mscale"), values.optional("mscale_all_dim")
    if attention_factor is None and of_one is not None and of_all is not None:  # DeepSeek's
        attention_factor = (0.1 * of_one * math.log(factor) + 1) / (0.1 * of_all * math.log(factor) + 1)
    return YarnScaling(
        factor,
        values.whole(ORIGINAL, default=config.get("max_position_embeddings")),
        attention_factor,
        values.optional("beta_fast") or 32.0,
        values.optional("beta_slow") or 1.0,
        values.flag("truncate", default=True),
    )


_YARN_KEYS = ("factor", ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_SCALINGS: dict[str, tuple[tuple[str, ...], Callable[[_Values, Mapping[str, Any]], RopeScaling | None]]] = {
    "default": ((), lambda _values, _config: None),
    "linear": (("factor",), _linear),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", ORIGINAL), _llama3),
    "yarn": (_YARN_KEYS, _yarn),
}
"""The supported types: their keys and readers."""


def _read_scaling(place: str, values: Mapping[str, Any], config: Mapping[str, Any]) -> RopeScaling | None:
    """Read `rope_parameters` or `rope_scaling`; None means no scaling."""
    kind = values.get("rope_type", values.get("type", "default"))
    if not isinstance(kind, str) or kind not in _SCALINGS:
        supported = ", ".join(map(repr, _SCALINGS))
        raise ModelConfigError(f'"{place}" has the type {short_repr(kind)}: only {supported} are supported')
    keys, read = _SCALINGS[kind]
    if unknown := sorted(set(values) - {"rope_type", "type", "rope_theta", *keys}):
        names = short_repr(unknown)
        raise ModelConfigError(f'"{place}" has keys that are not supported with the type {kind!r}: {names}')
    outside = config.get(ORIGINAL)  # some models have it there
    if ORIGINAL in keys and outside is not None and outside != values.get(ORIGINAL, outside):
        raise ModelConfigError(
            f'"{ORIGINAL}" and "{place}.{ORIGINAL}" disagree: {short_repr(outside)}, {short_repr(values[ORIGINAL])}'
        )
    original = {ORIGINAL: outside} if outside is not None else {}
    return read(_Values(place, {**original, **values}), config)
