"""Which runs a sweep consists of: base settings, and what varies."""

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trainer.errors import UsageError
from trainer.recipes.options import parse_train_settings
from trainer.recipes.scaling import DERIVED_SETTINGS
from trainer.settings.train import TrainSettings, to_table

Experiment = Literal["learning-rate", "batch-size", "vocab-size"]
Changes = dict[str, Any]

VOCAB_SIZE = "vocab_size"
_SCALING = {"depth", "preset", "improved"}
_NOT_VARIED = ("output", "resume", "overwrite", "stop_after", "config")
# Clipping and the decay to nearly 0 bring even 3,000 times a good rate back; the last of these diverges.
_RATE_FACTORS = (0.1, 0.3, 1, 3, 10, 100, 10_000)
_BATCH_FACTORS = (0.25, 0.5, 1, 2, 4)
_VOCAB_SIZES = (1_024, 2_048, 4_096, 8_192, 16_384)
# Counted in steps, so that they shrink with the number of steps where the tokens are held.
_IN_STEPS = ("warmup_steps", "eval_interval", "sample_interval", "log_interval", "checkpoint_interval")


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        name: The folder's name, made from the changes.
        changes: What the axes set; `vocab_size` is among them where that varies.
        settings: All settings; `output` is the run's folder.
    """

    name: str
    changes: Changes
    settings: TrainSettings


def parse_axes(texts: Sequence[str], *, option: str) -> dict[str, list[Any]]:
    """Axes from `NAME=VALUE,VALUE,…`, each value as TOML writes it, or a bare word.

    Raises:
        UsageError: not of this form, a setting that cannot vary, or a name that comes twice.
    """
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not values.strip():
            raise UsageError(f"{option} expects NAME=VALUE,VALUE,… such as learning_rate=1e-3,3e-3; got {text!r}")
        if name in _NOT_VARIED:
            raise UsageError(f"{option} {name}: the sweep sets it for each run")
        if name in axes:
            raise UsageError(f"{option} {name} is given twice; put all its values into one")
        axes[name] = _parse_values(values.strip())
    return axes


def _parse_values(text: str) -> list[Any]:
    whole = _parse_toml(text)
    if isinstance(whole, list):
        return whole
    several = _parse_toml(f"[{text}]")
    if isinstance(several, list):
        return several
    return [_parse_toml(word.strip()) for word in text.split(",")]


def _parse_toml(text: str) -> Any:
    """A TOML value; text that is not TOML is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text


def combine(
    experiment: Experiment | None, grid: Mapping[str, list[Any]], zipped: Mapping[str, list[Any]], base: TrainSettings
) -> list[Changes]:
    """The changes of each run: every combination of the grid, times the rows of the zipped axes.

    Args:
        experiment: A classic one, which adds its own axis with default values where the grid has none.
        grid: Axes of which every combination is run.
        zipped: Axes that vary together, all of one length.
        base: What the defaults derive from.

    Raises:
        UsageError: nothing varies, zipped axes differ in length, an axis is in both, or two runs would be the same.
    """
    for name, values in grid.items():
        if (twice := _first_repeated(values)) is not None:
            raise UsageError(f"--grid {name} has the value {values[twice[1]]} twice")
    axes = dict(grid)
    if experiment is not None:
        name, values = _classic_axis(experiment, base)
        if name not in zipped:
            axes.setdefault(name, values)
    both = set(axes) & set(zipped)
    if both:
        raise UsageError(f"{both.pop()} is in both --grid and --zip; give it once")
    lengths = {name: len(values) for name, values in zipped.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise UsageError(f"axes of --zip vary together, so they must have the same number of values: {counts}")
    if not axes and not zipped:
        raise UsageError("nothing varies: name an experiment (learning-rate, batch-size, vocab-size) or give --grid")
    rows = [dict(zip(zipped, row, strict=True)) for row in zip(*zipped.values(), strict=True)] or [{}]
    if (twice := _first_repeated(rows)) is not None:
        same = ", ".join(f"{name}={value}" for name, value in rows[twice[0]].items())
        raise UsageError(f"--zip gives the same run twice, with the values {twice[0] + 1} and {twice[1] + 1}: {same}")
    products = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [product | row for product in products for row in rows]


def _first_repeated(values: Sequence[Any]) -> tuple[int, int] | None:
    """The indexes of the first repeated value and of its repetition."""
    for place, value in enumerate(values):
        if value in values[:place]:
            return values.index(value), place
    return None


def _classic_axis(experiment: Experiment, base: TrainSettings) -> tuple[str, list[Any]]:
    if experiment == "learning-rate":
        return "learning_rate", [float(f"{base.optimization.learning_rate * f:.3g}") for f in _RATE_FACTORS]
    if experiment == "batch-size":
        sizes = sorted({max(1, int(base.total_batch_size * factor)) for factor in _BATCH_FACTORS})
        return "total_batch_size", list(sizes)
    return VOCAB_SIZE, list(_VOCAB_SIZES)


def plan_runs(base: TrainSettings, changes: Sequence[Changes], *, hold_tokens: bool) -> list[PlannedRun]:
    """A run for each of the changes.

    Args:
        base: The settings they have in common; `output` is the sweep's folder.
        changes: What each run sets.
        hold_tokens: Adapt the steps, and intervals counted in steps, so that each run trains on the tokens of `base`.

    Raises:
        UsageError: a key or a value is wrong.
    """
    whole = {name: value for name, value in to_table(base).items() if value is not None and name not in _NOT_VARIED}
    if base.optimization.warmup_steps == base.optimization.usual_warmup_steps:
        del whole["warmup_steps"]  # each run's own steps give it
    runs: list[PlannedRun] = []
    for own in changes:
        table = _without_derived(whole, base, own) if _SCALING & set(own) else whole
        name = _name(own)
        output = {"output": str(base.output / name)}
        source = f"run {name}"
        own_table = table | _micro_batch(own, base) | {key: own[key] for key in own if key != VOCAB_SIZE} | output
        if hold_tokens:
            any_warmup = {key: value for key, value in own_table.items() if key != "warmup_steps"}
            own_table |= _held_steps(own, base, parse_train_settings(any_warmup, source=source))
        runs.append(PlannedRun(name, own, parse_train_settings(own_table, source=source)))
    return runs


def _without_derived(table: Changes, base: TrainSettings, own: Changes) -> Changes:
    """The settings without those derived from the base's depth or preset: the run's own derive them again."""
    replaced = ({"depth", "preset"} if {"depth", "preset"} & set(own) else set()) | (
        {"improved"} if {"depth", "improved"} & set(own) else set()
    )
    asked = {name: value for name, value in table.items() if name not in DERIVED_SETTINGS}
    derived = to_table(parse_train_settings(asked | {"output": str(base.output)}, source="the base settings"))
    rest = {name: value for name, value in table.items() if name not in replaced}
    return {name: value for name, value in rest.items() if name in asked or derived[name] != value}


def _micro_batch(own: Changes, base: TrainSettings) -> Changes:
    """The most windows at once, up to the base's, that make up a total batch of another size."""
    total = own.get("total_batch_size")
    if type(total) is not int or total < 1 or "batch_size" in own:
        return {}
    at_once = min(total, base.optimization.batch_size)
    return {"batch_size": next(size for size in range(at_once, 0, -1) if total % size == 0)}


def _held_steps(own: Changes, base: TrainSettings, settings: TrainSettings) -> Changes:
    """The base's tokens in steps of another size."""
    before_steps = base.optimization.max_steps
    factor = settings.shapes.steps(base.shapes.tokens(before_steps)) / before_steps
    before = to_table(base)
    steps = {name: max(1, round(before[name] * factor)) if before[name] else 0 for name in ("max_steps", *_IN_STEPS)}
    max_steps = own.get("max_steps", steps["max_steps"])
    longest = replace(settings.optimization, max_steps=max_steps, warmup_steps=None).longest_warmup
    steps["warmup_steps"] = min(steps["warmup_steps"], longest)
    return {name: value for name, value in steps.items() if name not in own}


def _name(changes: Changes) -> str:
    """A folder's name made from the changes; long ones end in a hash."""
    full = ",".join(f"{key}={_show(value)}" for key, value in changes.items())
    safe = re.sub(r"[^\w.=,+-]", "_", full)
    if safe == full and len(safe) <= 100:
        return safe
    digest = hashlib.sha256(json.dumps(changes, default=str).encode()).hexdigest()[:8]
    return f"{safe[:100]}-{digest}"


def _show(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
