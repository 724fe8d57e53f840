"""Which runs a sweep consists of: base settings, and what varies."""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainer.errors import UsageError
from trainer.recipes.options import parse_train_settings
from trainer.recipes.scaling import DERIVED_SETTINGS
from trainer.settings.train import TrainSettings, to_table
from trainer.sweep.axes import NOT_VARIED
from trainer.sweep.studies import BATCH_SIZE, RATE, STUDIES, VOCAB_SIZE, Changes, Hold, RateScaling, Study

_BASELINE = "baseline"
_RATE_EXPONENTS: Mapping[RateScaling, float] = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
_SCALING = {"depth", "preset", "improved"}
# Counted in steps, so that they shrink with the number of steps where the tokens are held.
_IN_STEPS = ("warmup_steps", "eval_interval", "sample_interval", "log_interval", "checkpoint_interval")


@dataclass(frozen=True)
class Design:
    """What the runs of a sweep have in common, and how their settings follow from what varies.

    Attributes:
        base: The settings they have in common; `output` is the sweep's folder.
        study: The classic experiment, if it is one.
        hold: What each run has as many of as `base`: with tokens, steps and intervals counted in steps are adapted.
        rate_scaling: How the learning rate follows the batch: not at all, by its square root, or in proportion.
        refinements: How often the edge of stability is narrowed after the other runs.
    """

    base: TrainSettings
    study: Study = field(default_factory=Study)
    hold: Hold = "steps"
    rate_scaling: RateScaling = "none"
    refinements: int = 0


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        name: The folder's name, made from the changes.
        changes: What the axes set; `vocab_size` is among them where that varies.
        settings: All settings; `output` is the run's folder.
        baseline: Whether it is what the variants of its study are compared with.
    """

    name: str
    changes: Changes
    settings: TrainSettings
    baseline: bool = False


def combine(
    study: Study, grid: Mapping[str, list[Any]], zipped: Mapping[str, list[Any]], base: TrainSettings
) -> list[Changes]:
    """The changes of each run: every variant of the study, times every combination of the grid, times the zipped rows.

    Args:
        study: Adds its variants, and its axis with default values where grid and zip have none.
        grid: Axes of which every combination is run.
        zipped: Axes that vary together, all of one length.
        base: What the defaults derive from.

    Raises:
        UsageError: nothing varies, zipped axes differ in length, an axis is given twice, or two runs would be the same.
    """
    for name, values in grid.items():
        if (twice := _first_repeated(values)) is not None:
            raise UsageError(f"--grid {name} has the value {values[twice[1]]} twice")
    axes = dict(grid)
    if study.axis is not None:
        name, values = study.axis(base)
        if name not in zipped:
            axes.setdefault(name, values)
    if both := set(axes) & set(zipped):
        raise UsageError(f"{min(both)} is in both --grid and --zip; give it once")
    if own := study.switches & {*axes, *zipped}:
        raise UsageError(f"{min(own)} is varied by the study itself; leave it out of --grid and --zip")
    if not axes and not zipped and not study.switches:
        raise UsageError(f"nothing varies: name an experiment ({', '.join(STUDIES)}) or give --grid")
    products = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    rows = _rows(zipped)
    return [variant | product | row for variant in study.variants for product in products for row in rows]


def _rows(zipped: Mapping[str, list[Any]]) -> list[Changes]:
    """The rows of the axes that vary together; one without changes where there are none."""
    lengths = {name: len(values) for name, values in zipped.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise UsageError(f"axes of --zip vary together, so they must have the same number of values: {counts}")
    rows = [dict(zip(zipped, row, strict=True)) for row in zip(*zipped.values(), strict=True)] or [{}]
    if (twice := _first_repeated(rows)) is not None:
        same = ", ".join(f"{name}={value}" for name, value in rows[twice[0]].items())
        raise UsageError(f"--zip gives the same run twice, with the values {twice[0] + 1} and {twice[1] + 1}: {same}")
    return rows


def _first_repeated(values: Sequence[Any]) -> tuple[int, int] | None:
    """The indexes of the first repeated value and of its repetition."""
    for place, value in enumerate(values):
        if value in values[:place]:
            return values.index(value), place
    return None


def plan_runs(design: Design, changes: Sequence[Changes]) -> list[PlannedRun]:
    """A run for each of the changes.

    Raises:
        UsageError: a key or a value is wrong, what is held or scaled varies, or two runs have the same settings.
    """
    base = design.base
    _check_design(design, changes)
    whole = {name: value for name, value in to_table(base).items() if value is not None and name not in NOT_VARIED}
    if base.optimization.warmup_steps == base.optimization.usual_warmup_steps:
        del whole["warmup_steps"]  # each run's own steps give it
    runs: list[PlannedRun] = []
    for own in changes:
        baseline = bool(design.study.switches) and not design.study.switches & set(own)
        name = ",".join(filter(None, [_BASELINE if baseline else "", _name(own)]))
        runs.append(PlannedRun(name, own, _settings(design, whole, own, name), baseline))
    _check_distinct(runs)
    return runs


def _check_design(design: Design, changes: Sequence[Changes]) -> None:
    varied = {name for own in changes for name in own}
    if design.hold == "tokens" and "max_steps" in varied:
        raise UsageError("max_steps varies, so the number of tokens cannot be held; give --hold steps")
    if design.refinements and RATE not in varied:
        raise UsageError("--refine narrows the edge of stability where learning_rate varies, and it does not")
    if design.rate_scaling != "none" and RATE in varied:
        raise UsageError("learning_rate varies, so --rate-scaling cannot set it; give one of them")
    if design.rate_scaling != "none" and not varied & {BATCH_SIZE, "batch_size", "context_length"}:
        raise UsageError(f"--rate-scaling is for batches of several sizes, and {BATCH_SIZE} does not vary")


def _settings(design: Design, whole: Changes, own: Changes, name: str) -> TrainSettings:
    """The settings of one run, from the table of the base settings and the run's own."""
    base, source = design.base, f"run {name}"
    table = _without_derived(whole, base, own) if _SCALING & set(own) else whole
    output = {"output": str(base.output / name)}
    own_table = table | _micro_batch(own, base) | {key: own[key] for key in own if key != VOCAB_SIZE} | output
    if design.hold == "steps" and design.rate_scaling == "none":
        return parse_train_settings(own_table, source=source)
    any_warmup = {key: value for key, value in own_table.items() if key != "warmup_steps"}
    settings = parse_train_settings(any_warmup, source=source)
    if design.hold == "tokens":
        own_table |= _held_steps(own, base, settings)
    if design.rate_scaling != "none":
        factor = (settings.tokens_per_step / base.tokens_per_step) ** _RATE_EXPONENTS[design.rate_scaling]
        own_table[RATE] = float(f"{base.optimization.learning_rate * factor:.4g}")
    return parse_train_settings(own_table, source=source)


def _check_distinct(runs: Sequence[PlannedRun]) -> None:
    """Refuse two runs that would train the same model, or have the same folder."""
    seen: dict[str, str] = {}
    for run in runs:
        table = to_table(run.settings) | {"output": None, VOCAB_SIZE: run.changes.get(VOCAB_SIZE)}
        for key in (repr(table), run.name):
            if key in seen:
                raise UsageError(f"runs {seen[key]} and {run.name} are the same: all settings are equal; leave one out")
        seen |= {repr(table): run.name, run.name: run.name}


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
    total = own.get(BATCH_SIZE)
    if type(total) is not int or total < 1 or "batch_size" in own:
        return {}
    at_once = min(total, base.optimization.batch_size)
    return {"batch_size": next(size for size in range(at_once, 0, -1) if total % size == 0)}


def _held_steps(own: Changes, base: TrainSettings, settings: TrainSettings) -> Changes:
    """The base's tokens in steps of another size."""
    before_steps = base.optimization.max_steps
    held = base.shapes.tokens(before_steps)
    factor = settings.shapes.steps(held) / before_steps
    if settings.tokens_per_step > held:
        raise UsageError(
            f"run {_name(own)}: one step has {settings.tokens_per_step:,} tokens, more than the {held:,} that are "
            "held; give more --max-steps, or smaller batches"
        )
    before = to_table(base)
    steps = {name: max(1, round(before[name] * factor)) if before[name] else 0 for name in ("max_steps", *_IN_STEPS)}
    longest = replace(settings.optimization, max_steps=steps["max_steps"], warmup_steps=None).longest_warmup
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
