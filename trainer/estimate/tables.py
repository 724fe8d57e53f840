"""Estimates as JSON and as tables."""

import dataclasses
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from shared.lm import ModelConfig
from shared.lm.accounting import BACKWARD_PER_FORWARD, count_parameters, forward_flops, optimizer_flops
from trainer.estimate.estimate import Estimate
from trainer.estimate.fitting import largest_batch
from trainer.estimate.traced_step import traced_peak

_NAMES = {
    "feed_forward": "feed-forward",
    "projections": "attention: projections",
    "scores": "attention: scores",
    "output": "output projection",
    "optimizer": "optimizer state",
    "gaps": "gaps of the allocator",
    "process": "the program itself",
}


def to_json(estimate: Estimate, *, tokens: int, length: int | None = None) -> dict[str, Any]:
    """The estimate as plain data: bytes, seconds, operations.

    Args:
        estimate: From `estimate_run`.
        tokens: The budget whose time is asked for.
        length: Tokens of the sequence whose forward pass is counted by component; the context length if None.
    """
    e, m = estimate, estimate.memory
    largest = largest_batch(e.settings, e.config, e.device, e.available, peak=traced_peak)
    parameters = count_parameters(e.config)
    forward = forward_flops(e.config, length=length)
    return {
        "parameters": {**dataclasses.asdict(parameters), "total": parameters.total},
        "flops": {
            "sequence_length": length or e.config.context_length,
            "forward": {**dataclasses.asdict(forward), "total": forward.total},
            "backward": {
                **{name: BACKWARD_PER_FORWARD * value for name, value in dataclasses.asdict(forward).items()},
                "total": BACKWARD_PER_FORWARD * forward.total,
            },
            "optimizer_step": optimizer_flops(e.config, e.settings.optimization.optimizer),
            "step": e.step_flops,
        },
        "memory": {**dataclasses.asdict(m), "total": m.total, "available": e.available},
        "speed": {
            "device": str(e.device),
            "flops_per_second": round(e.speed.flops_per_second),
            "matmul_flops_per_second": round(e.speed.matmul_flops_per_second),
            "utilization": round(e.speed.utilization, 3),
            "tokens_per_second": round(e.speed.tokens_per_second, 1),
            "measured": None if e.speed.measured is None else dataclasses.asdict(e.speed.measured),
        },
        "batch_size": e.settings.optimization.batch_size,
        "largest_batch_size": largest,
        "run": _budget(e, e.run_tokens) | {"max_steps": e.settings.optimization.max_steps},
        "budget": _budget(e, tokens),
    }


def _budget(estimate: Estimate, tokens: int) -> dict[str, float]:
    return {
        "tokens": tokens,
        "steps": math.ceil(estimate.settings.shapes.steps(tokens)),
        "seconds": round(estimate.seconds(tokens), 1),
    }


def estimate_tables(estimate: Mapping[str, Any]) -> RenderableType:
    """Tables of what `to_json` gave."""
    return Group(_parameters(estimate), _flops(estimate), _memory(estimate), _time(estimate))


def _parameters(estimate: Mapping[str, Any]) -> Table:
    table = _table("Parameters", "", "number", "share")
    _with_shares(table, estimate["parameters"])
    return table


def _flops(estimate: Mapping[str, Any]) -> Table:
    flops = estimate["flops"]
    table = _table(f"Matrix products of one sequence of {flops['sequence_length']:,} tokens", "", "forward", "backward")
    table.add_column("share", justify="right")
    total = flops["forward"]["total"]
    for name, forward in flops["forward"].items():
        backward = flops["backward"][name]
        table.add_row(_name(name), _flop(forward), _flop(backward), f"{forward / total:.1%}")
    table.add_row("optimizer step", "", _flop(flops["optimizer_step"]), "")
    table.add_row("a whole step", "", _flop(flops["step"]), "")
    return table


def _memory(estimate: Mapping[str, Any]) -> Table:
    memory = estimate["memory"]
    table = _table(f"Memory at the peak of a step, {estimate['batch_size']} windows at once", "", "MB", "share")
    parts: dict[str, int] = {}
    for name, value in memory.items():
        if name == "activations":
            parts |= {f"activations: {component}": size for component, size in value.items()}
        elif name not in {"total", "available"}:
            parts[name] = value
    for name, size in {**parts, "total": memory["total"]}.items():
        table.add_row(_name(name), f"{size / 1e6:,.1f}", f"{size / memory['total']:.1%}")
    table.add_row("available", f"{memory['available'] / 1e6:,.1f}", "")
    largest = estimate["largest_batch_size"]
    table.add_row("largest batch_size that fits", f"{largest:,}" if largest else "none", "")
    return table


def _time(estimate: Mapping[str, Any]) -> Table:
    speed, run, budget = estimate["speed"], estimate["run"], estimate["budget"]
    measured = speed["measured"]
    how = "measured" if measured else "estimated"
    table = _table(f"Time on {speed['device']}", "", how)
    table.add_row("matrix products", f"{speed['matmul_flops_per_second'] / 1e9:,.1f} GFLOP/s")
    table.add_row("training", f"{speed['flops_per_second'] / 1e9:,.1f} GFLOP/s ({speed['utilization']:.0%})")
    table.add_row("tokens a second", f"{speed['tokens_per_second']:,.0f}")
    if measured:
        table.add_row("memory held at most", f"{measured['peak_bytes'] / 1e6:,.1f} MB")
    table.add_row(f"max_steps ({run['max_steps']:,} steps, {run['tokens']:,} tokens)", _duration(run["seconds"]))
    if budget != {name: run[name] for name in budget}:
        table.add_row(f"{budget['tokens']:,} tokens ({budget['steps']:,} steps)", _duration(budget["seconds"]))
    return table


def comparison(configs: Mapping[str, ModelConfig], length: int | None) -> Table:
    """Parameters and forward passes of several models, one a row."""
    title = f"One forward pass of {length:,} tokens" if length else "One forward pass of a full context"
    table = Table(box=None, padding=(0, 1, 0, 0), title=title, title_justify="left", title_style="bold")
    for name in ("model", "parameters", "FLOPs", "projections", "scores", "feed-forward", "output"):
        table.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for name, config in configs.items():
        flops = forward_flops(config, length=length)
        parts = (flops.projections, flops.scores, flops.feed_forward, flops.output)
        table.add_row(
            name,
            f"{count_parameters(config).total:,}",
            f"{flops.total:,}",
            *(f"{part / flops.total:.1%}" for part in parts),
        )
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(first, title=title, title_justify="left", title_style="bold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _with_shares(table: Table, values: Mapping[str, int]) -> None:
    for name, value in values.items():
        table.add_row(_name(name), f"{value:,}", f"{value / values['total']:.1%}")


def _name(name: str) -> str:
    return _NAMES.get(name, name)


def _flop(value: int) -> str:
    return f"{value / 1e9:,.1f} GFLOP" if value < 1e12 else f"{value / 1e12:,.1f} TFLOP"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
