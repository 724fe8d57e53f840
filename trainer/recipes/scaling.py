"""Scaling presets: a model's shape, its training and the number of steps, derived from a depth or a published shape.

Every derived value has a source. Settings that the user gives take precedence, and the rest is derived from them.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainer.errors import UsageError
from trainer.recipes.presets import PRESETS
from trainer.settings.train import ModelSettings, OptimizationSettings

DERIVED_SETTINGS = frozenset(
    ["max_steps", "total_batch_size", "batch_size", "learning_rate", "warmup_steps", "num_layers", "d_model"]
    + [name for preset in PRESETS.values() for name in preset.settings]
)
"""The settings that a scaling preset may derive."""

_WIDTH_PER_LAYER = 64
_MOST_WINDOWS_AT_ONCE = 32
_TOKENS_PER_PARAMETER = 20
_EPOCHS = 4
_HIGHEST_RATE = 4e-3
_WARMUP_SHARE, _LONGEST_WARMUP = 0.02, 2_000
# DeepSeek LLM (arXiv 2401.02954), equation 1: the best rate and batch (in tokens) for C non-embedding FLOPs.
_RATE_FACTOR, _RATE_EXPONENT = 0.3118, -0.1250
_BATCH_FACTOR, _BATCH_EXPONENT = 0.2920, 0.3271


@dataclass(frozen=True)
class Derived:
    """A setting that is derived from others: its name, its value, and the rule with its source."""

    name: str
    value: Any
    reason: str


def derive(given: Mapping[str, Any], *, vocab_size: int, data_tokens: int | None) -> list[Derived]:
    """The settings that are not given and that a depth or a preset implies.

    Args:
        given: Settings by name, among them `depth` or `preset`.
        vocab_size: Of the tokenizer.
        data_tokens: Training tokens there are; None if that is not known.

    Raises:
        UsageError: both or neither of depth and preset, or sizes that do not match.
    """
    shape = [derived for derived in _shape(given) if derived.name not in given]
    known = {**given, **{derived.name: derived.value for derived in shape}}
    return shape + _training(known, given, vocab_size=vocab_size, data_tokens=data_tokens)


def _shape(given: Mapping[str, Any]) -> list[Derived]:
    depth: int | None = given.get("depth")
    preset: str | None = given.get("preset")
    if (depth is None) == (preset is None):
        raise UsageError("--depth and --preset both set the shape of the model: give one of them")
    if depth is None:
        shape = PRESETS[str(preset)]
        return [Derived(name, value, shape.source) for name, value in shape.settings.items()]
    if depth < 1:
        raise UsageError(f"depth must be at least 1; got {depth}")
    width = _WIDTH_PER_LAYER * depth
    return [
        Derived("num_layers", depth, "--depth"),
        Derived("d_model", width, f"{_WIDTH_PER_LAYER} for each layer, nanochat's ratio"),
    ]


def _training(
    known: Mapping[str, Any], given: Mapping[str, Any], *, vocab_size: int, data_tokens: int | None
) -> list[Derived]:
    """Batch, steps, rate and warm-up, from the size of the model."""
    from trainer.components.model import model_config

    # Checks the given values. The warm-up must fit into the steps, which may not be known yet.
    asked = OptimizationSettings(**_of(OptimizationSettings, {**given, "warmup_steps": None}))
    config = model_config(ModelSettings(**_of(ModelSettings, known)), vocab_size)
    batch: int | None = given.get("total_batch_size")
    # Non-embedding FLOPs of a token, forward and backward: equation 2 of the same paper.
    flops = config.num_layers * (72 * config.d_model**2 + 12 * config.d_model * config.context_length)
    tokens, budget = _budget(config.num_parameters, data_tokens)
    if "max_steps" in given:
        tokens = given["max_steps"] * (
            batch * config.context_length if batch else _batch_of_steps(flops, given["max_steps"])
        )
    compute = flops * tokens
    derived: list[Derived] = []
    if batch is None:
        batch, derived = _batch(compute, config.context_length, given)
    steps = given.get("max_steps") or max(1, round(tokens / (batch * config.context_length)))
    rate = _RATE_FACTOR * compute**_RATE_EXPONENT
    longest = replace(asked, max_steps=steps, warmup_steps=None).longest_warmup
    limited = f", at most {_HIGHEST_RATE:g} (docs/lab/log.md)" if rate > _HIGHEST_RATE else ""
    derived += [
        Derived("max_steps", steps, budget),
        Derived(
            "learning_rate",
            float(f"{min(rate, _HIGHEST_RATE):.2g}"),
            f"0.3118 C^-0.125 with C = {compute:.1e} FLOPs (DeepSeek LLM, fitted for 1e17 to 2e19){limited}",
        ),
        Derived(
            "warmup_steps",
            min(_LONGEST_WARMUP, math.ceil(_WARMUP_SHARE * steps), longest),
            f"{_WARMUP_SHARE:.0%} of the steps, at most DeepSeek LLM's {_LONGEST_WARMUP:,}",
        ),
    ]
    return [one for one in derived if one.name not in given]


def _of(settings_class: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {item.name: values[item.name] for item in dataclasses.fields(settings_class) if item.name in values}


def _budget(parameters: int, data_tokens: int | None) -> tuple[int, str]:
    """How many tokens to train on, and why."""
    wanted = _TOKENS_PER_PARAMETER * parameters
    if data_tokens is not None and wanted > _EPOCHS * data_tokens:
        return _EPOCHS * data_tokens, (
            f"{_EPOCHS} times the {data_tokens:,} tokens of the data, since more repetition helps little (Muennighoff "
            f"et al. 2023, arXiv 2305.16264); {_TOKENS_PER_PARAMETER} for each parameter would be {wanted:,}"
        )
    return wanted, (
        f"{wanted:,} tokens, {_TOKENS_PER_PARAMETER} for each of {parameters:,} parameters (Chinchilla: Hoffmann "
        "et al. 2022, arXiv 2203.15556)"
    )


def _batch_of_steps(flops: int, steps: int) -> float:
    """The batch in tokens that is best for so many steps of itself: B = f (flops * steps * B)^e, solved for B."""
    return float((_BATCH_FACTOR * (flops * steps) ** _BATCH_EXPONENT) ** (1 / (1 - _BATCH_EXPONENT)))


def _batch(compute: float, context_length: int, given: Mapping[str, Any]) -> tuple[int, list[Derived]]:
    """Windows of a step, near the best number, and of a pass."""
    best = _BATCH_FACTOR * compute**_BATCH_EXPONENT
    windows = best / context_length
    at_once = given.get("batch_size")
    if at_once is None:
        total = _power_of_two(windows)
        at_once = min(total, _MOST_WINDOWS_AT_ONCE)
    else:
        total = at_once * max(1, round(windows / at_once))
    reason = f"{best:,.0f} tokens, 0.292 C^0.3271 (DeepSeek LLM, arXiv 2401.02954), in windows of {context_length}"
    return total, [
        Derived("total_batch_size", total, reason),
        Derived("batch_size", at_once, "windows per pass; as many as fit into memory are fastest"),
    ]


def _power_of_two(number: float) -> int:
    """The nearest one by ratio, from 1 on."""
    return int(2 ** max(0, round(math.log2(max(1.0, number)))))
