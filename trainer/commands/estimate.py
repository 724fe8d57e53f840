"""`estimate`: the cost of a run, before it starts."""

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from trainer.errors import UsageError
from trainer.settings.train import TrainSettings


@Parameter(name="*", group=Group("Folders", sort_key=0))
@dataclass(frozen=True, kw_only=True)
class EstimateSettings(TrainSettings):
    """The run's settings, which need neither data nor output."""

    data: Annotated[Path, Parameter(show_default=False)] = Path()
    """Folder that `encode` wrote; only the size of its vocabulary matters, so --vocab-size may stand for it."""

    output: Annotated[Path, Parameter(show_default=False)] = Path()
    """Not written to; here so that a run's train.toml serves as --config."""


_DEFAULTS = EstimateSettings()


def estimate(
    *,
    settings: EstimateSettings = _DEFAULTS,
    vocab_size: int | None = None,
    measure: Annotated[bool, Parameter(negative="")] = False,
    tokens: int | None = None,
    sequence_length: int | None = None,
    compare: Literal["gpt2"] | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Estimate a training run: parameters, operations, memory, time.

    It takes the options of `train`: `python -m trainer estimate --data tokens`, or without data `--vocab-size 10000`.
    Memory is traced through a step without computing it, and is within 10 % of what the process then takes on Linux.
    The time follows from the speed of matrix products here, good for a first guess; --measure takes a few real steps.

    Args:
        settings: The run's.
        vocab_size: Size of the vocabulary, if there is no data yet.
        measure: Take a few real steps; needs the memory of the run.
        tokens: Also say how long training on so many tokens takes.
        sequence_length: Count the operations of a sequence of this length rather than of the context length.
        compare: Compare the costs of GPT-2's four sizes instead.
        json: Print JSON rather than tables; bytes, seconds, operations.
    """
    for name, value in (("vocab-size", vocab_size), ("tokens", tokens), ("sequence-length", sequence_length)):
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be at least 1; got {value}")
    if compare is not None:
        _compare(sequence_length, as_json=json)
        return
    import torch

    from shared.system.allocation import keep_freed_memory
    from trainer.components.model import model_config
    from trainer.compute.device import choose_device
    from trainer.console.tables import print_table
    from trainer.estimate.estimate import estimate_run
    from trainer.estimate.tables import estimate_tables, to_json
    from trainer.estimate.traced_step import traced_peak

    keep_freed_memory()  # as `train` does, so that steps measured here are as fast as there
    size = _vocab_size(settings.data) if vocab_size is None else vocab_size
    if settings.machine.threads is not None:
        torch.set_num_threads(settings.machine.threads)
    device = choose_device(settings.machine.device, settings.machine.dtype, d_model=settings.model.d_model)
    config = model_config(settings.model, size)
    found = estimate_run(settings, config, device, measure=measure, peak=traced_peak)
    table = to_json(found, tokens=tokens or found.run_tokens, length=sequence_length)
    if json:
        print(json_format.dumps(table, indent=2))  # noqa: T201 - the output
    else:
        print_table(estimate_tables(table))


def _compare(length: int | None, *, as_json: bool) -> None:
    from dataclasses import asdict

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


def _vocab_size(data: Path) -> int:
    from trainer.tokens.token_file import TokenFile

    if data == Path():
        raise UsageError("unknown vocabulary size: give --data or --vocab-size")
    return TokenFile.open(data, "train").manifest.vocab_size
