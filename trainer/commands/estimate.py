"""`estimate`: the cost of a run, before it starts."""

import json as json_format
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from trainer.errors import UsageError
from trainer.settings.hardware import HardwareSettings
from trainer.settings.plan import PlanSettings

if TYPE_CHECKING:
    from shared.lm import ModelConfig
    from trainer.estimate.target import Target

_MOST_TOKENS = 2**63 - 1  # as of every other setting


@Parameter(name="*", group=Group("Folders", sort_key=0))
@dataclass(frozen=True, kw_only=True)
class EstimateSettings(PlanSettings):
    """The run's settings, and the machine's."""

    hardware: HardwareSettings = field(default_factory=HardwareSettings)


_DEFAULTS = EstimateSettings()


def estimate(
    *,
    settings: EstimateSettings = _DEFAULTS,
    vocab_size: int | None = None,
    measure: Annotated[bool, Parameter(negative="")] = False,
    tokens: int | None = None,
    sequence_length: int | None = None,
    formula: Annotated[bool, Parameter(negative="")] = False,
    compare: Literal["gpt2"] | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Estimate a training run: parameters, operations, memory, time, on this machine or another.

    It takes the options of `train`: `python -m trainer estimate --data tokens`, or without data `--vocab-size 10000`.
    Memory is traced through a step without computing it, and is within 10 % of what the process then takes on Linux.
    The time follows from the speed of matrix products here, good for a first guess; --measure takes a few real steps.
    A machine that is not here is described by --machine, or by --device, --memory and --peak-flops.

    Args:
        settings: The run's.
        vocab_size: Size of the vocabulary, if there is no data yet.
        measure: Take a few real steps; needs the memory of the run.
        tokens: Also say how long training on so many tokens takes.
        sequence_length: Count the operations of a sequence of this length rather than of the context length.
        formula: Also show memory and operations as formulas of the batch size, as CS336's assignment counts them.
        compare: Compare the costs of GPT-2's four sizes instead.
        json: Print JSON rather than tables; bytes, seconds, operations.
    """
    for name, value in (("vocab-size", vocab_size), ("tokens", tokens), ("sequence-length", sequence_length)):
        if value is not None and not 1 <= value <= _MOST_TOKENS:
            raise UsageError(f"--{name} must be from 1 to {_MOST_TOKENS}; got {value}")
    hardware = settings.hardware
    if compare is not None:
        if formula or measure or tokens or hardware != HardwareSettings():
            raise UsageError("--compare counts operations only; of the other options it takes --sequence-length")
        _compare(sequence_length, as_json=json)
        return
    if measure and (hardware.describes or hardware.devices > 1):
        raise UsageError("--measure takes steps on one device of this machine; omit it to estimate another machine")
    from shared.system.allocation import keep_freed_memory
    from trainer.components.parent import trained_config
    from trainer.console.tables import print_table
    from trainer.estimate.estimate import estimate_run
    from trainer.estimate.formula import formula_peak
    from trainer.estimate.tables import estimate_tables, to_json
    from trainer.estimate.traced_step import traced_peak

    keep_freed_memory()  # as `train` does, so that steps measured here are as fast as there
    config = trained_config(settings, _vocab_size(settings.data) if vocab_size is None else vocab_size)
    target = _target(settings)
    peak = traced_peak if target.here else formula_peak
    found = estimate_run(settings, config, target, measure=measure, peak=peak)
    if hardware.price_per_hour is not None and found.speed is None:
        raise UsageError("--price-per-hour needs the time of the run: give --peak-flops as well")
    table = to_json(
        found, tokens=tokens or found.run_tokens, length=sequence_length, price_per_hour=hardware.price_per_hour
    )
    if formula:
        table["formula"] = _formula(settings, config, target)
    if json:
        print(json_format.dumps(table, indent=2))  # noqa: T201 - the output
    else:
        print_table(estimate_tables(table))


def _formula(settings: EstimateSettings, config: "ModelConfig", target: "Target") -> dict[str, Any]:
    from trainer.estimate.algebra import step_algebra

    o = settings.optimization
    algebra = step_algebra(config, o.optimizer, target.memory, momentum=o.momentum)
    return {**asdict(algebra), "largest_batch": algebra.largest_batch}


def _target(settings: EstimateSettings) -> "Target":
    from trainer.compute.processes import Processes, check_batch
    from trainer.compute.threads import prepare_threads
    from trainer.estimate.target import choose_target

    prepare_threads(settings.machine.threads)
    check_batch(settings, Processes(count=settings.hardware.devices))
    return choose_target(settings.machine, settings.hardware, d_model=settings.model.d_model)


def _compare(length: int | None, *, as_json: bool) -> None:
    from shared.lm.accounting import count_parameters, forward_flops
    from trainer.console.tables import print_table
    from trainer.estimate.gpt2 import gpt2_configs
    from trainer.estimate.tables import comparison

    configs = gpt2_configs()
    if not as_json:
        print_table(comparison(configs, length))
        return
    table = {}
    for name, config in configs.items():
        flops = forward_flops(config, length=length)
        table[name] = {"parameters": count_parameters(config).total, "forward": asdict(flops) | {"total": flops.total}}
    print(json_format.dumps(table, indent=2))  # noqa: T201 - the output


def _vocab_size(data: Path) -> int | None:
    """Of the data, if there is any."""
    from trainer.tokens.token_file import TokenFile

    return None if data == Path() else TokenFile.open(data, "train").manifest.vocab_size
