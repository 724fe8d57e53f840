"""Scaling presets: a model's shape, its training and the number of steps, derived from a depth or a published model.

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
    + [name for preset in PRESETS.values() for part in (preset.shape, *preset.recipe) for name in part.settings]
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


def derive(given: Mapping[str, Any], *, vocab_size: int | None, data_tokens: int | None) -> list[Derived]:
    """The settings that are not given and that a depth or a preset implies.

    A preset gives the values of its sources. What they leave out, and with `improved` all but the shape, is derived as
    for a depth.

    Args:
        given: Settings by name, among them `depth` or `preset`.
        vocab_size: Of the tokenizer; None if that is not known, which `needs_vocabulary` must allow.
        data_tokens: Training tokens there are; None if that is not known.

    Raises:
        UsageError: both or neither of depth and preset, or sizes that do not match.
    """
    fixed = [_adapted(derived, given) for derived in _fixed(given) if derived.name not in given]
    known = {**given, **{derived.name: derived.value for derived in fixed}}
    return fixed + _training(known, vocab_size=vocab_size, data_tokens=data_tokens)


def needs_vocabulary(given: Mapping[str, Any]) -> bool:
    """Whether anything is derived from the size of the vocabulary: the steps, if neither user nor source gives them."""
    return "max_steps" not in given and "max_steps" not in {derived.name for derived in _fixed(given)}


def _fixed(given: Mapping[str, Any]) -> list[Derived]:
    """The shape, and what else the sources of a preset give."""
    depth: int | None = given.get("depth")
    preset: str | None = given.get("preset")
    if (depth is None) == (preset is None):
        raise UsageError("--depth and --preset both set the shape of the model: give one of them")
    if depth is None:
        model = PRESETS[str(preset)]
        parts = (model.shape,) if given.get("improved") else (model.shape, *model.recipe)
        return [Derived(name, value, part.source) for part in parts for name, value in part.settings.items()]
    if depth < 1:
        raise UsageError(f"--depth must be at least 1; got {depth}")
    width = _WIDTH_PER_LAYER * depth
    return [
        Derived("num_layers", depth, "--depth"),
        Derived("d_model", width, f"{_WIDTH_PER_LAYER} for each layer, nanochat's ratio"),
    ]


def _adapted(derived: Derived, given: Mapping[str, Any]) -> Derived:
    """A published value that fits the batch size and the steps that the user gives."""
    name, value, reason = derived.name, derived.value, derived.reason
    at_once, steps = given.get("batch_size", 0), given.get("max_steps", 0)
    if name == "total_batch_size" and at_once > 0 and value % at_once:
        return Derived(name, _multiple(value, at_once), f"{reason}: {value}; a multiple of batch_size")
    if name == "warmup_steps" and steps > 0:
        published = next((one.value for one in _fixed(given) if one.name == "max_steps"), steps)
        if steps != published:
            return Derived(name, value * steps // published, f"{reason}: {value:,} of {published:,} steps")
    return derived


def _training(known: Mapping[str, Any], *, vocab_size: int | None, data_tokens: int | None) -> list[Derived]:
    """Batch, steps, rate and warm-up as far as they are not known, from the size of the model."""
    from trainer.components.model import model_config

    total: int | None = known.get("total_batch_size")
    at_once = known.get("batch_size", None if total is None else _at_once(total))
    # Checks the values. The warm-up must fit into the steps, which may not be known yet.
    checked = {**known, "warmup_steps": None, **({} if at_once is None else {"batch_size": at_once})}
    asked = OptimizationSettings(**_of(OptimizationSettings, checked))
    config = model_config(ModelSettings(**_of(ModelSettings, known)), vocab_size or 1)
    # Non-embedding FLOPs of a token, forward and backward: equation 2 of the same paper.
    flops = config.num_layers * (72 * config.d_model**2 + 12 * config.d_model * config.context_length)
    steps: int | None = known.get("max_steps")
    if steps is None:
        tokens, budget = _budget(config.num_parameters, data_tokens)
    else:
        tokens, budget = round(steps * (total * config.context_length if total else _batch_of_steps(flops, steps))), ""
    compute = flops * tokens
    derived: list[Derived] = []
    if total is None:
        total, reason = _total_batch(compute, config.context_length, at_once)
        derived.append(Derived("total_batch_size", total, reason))
    steps = steps or max(1, round(tokens / (total * config.context_length)))
    rate = _RATE_FACTOR * compute**_RATE_EXPONENT
    longest = replace(asked, total_batch_size=None, max_steps=steps, warmup_steps=None).longest_warmup
    limited = f", at most {_HIGHEST_RATE:g} (docs/lab/log.md)" if rate > _HIGHEST_RATE else ""
    derived += [
        Derived("batch_size", _at_once(total), "windows per pass; as many as fit into memory are fastest"),
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
    return [one for one in derived if one.name not in known]


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


def _total_batch(compute: float, context_length: int, at_once: int | None) -> tuple[int, str]:
    """Windows of a step, near the best number: a power of two, or a multiple of those of a pass."""
    best = _BATCH_FACTOR * compute**_BATCH_EXPONENT
    windows = best / context_length
    total = int(2 ** max(0, round(math.log2(max(1.0, windows))))) if at_once is None else _multiple(windows, at_once)
    return total, f"{best:,.0f} tokens, 0.292 C^0.3271 (DeepSeek LLM, arXiv 2401.02954), in windows of {context_length}"


def _multiple(number: float, of: int) -> int:
    """The nearest one, from `of` on."""
    return of * max(1, round(number / of))


def _at_once(total: int) -> int:
    """Windows of a pass: the most that divide those of a step."""
    most = max(1, min(total, _MOST_WINDOWS_AT_ONCE))
    return next(size for size in range(most, 0, -1) if total % size == 0)
