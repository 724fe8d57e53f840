"""Estimates as JSON and as tables."""

import dataclasses
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from shared.lm import ModelConfig
from shared.lm.accounting import count_parameters, forward_flops, optimizer_flops
from trainer.components.lora import trained_parameters
from trainer.estimate.estimate import Estimate, pass_flops, update_flops

_GIB = 1 << 30

_PRECISIONS = {"float32": "float32", "tf32": "TF32", "bfloat16": "bfloat16"}

_NAMES = {
    "feed_forward": "feed-forward",
    "projections": "attention: projections",
    "scores": "attention: scores",
    "output": "output projection",
    "optimizer": "optimizer state",
    "gaps": "gaps of the allocator",
    "process": "the program itself",
}


def to_json(
    estimate: Estimate, *, tokens: int, length: int | None = None, price_per_hour: float | None = None
) -> dict[str, Any]:
    """The estimate as plain data: bytes, seconds, operations.

    Args:
        estimate: From `estimate_run`.
        tokens: The budget whose time is asked for.
        length: Tokens of the sequence whose forward pass is counted by component; the context length if None.
        price_per_hour: Dollars for an hour of one device.
    """
    e, m, speed, o = estimate, estimate.memory, estimate.speed, estimate.settings.optimization
    parameters = count_parameters(e.config)
    forward, backward = pass_flops(e.settings, e.config, length=length)
    return {
        "machine": {
            "name": e.target.name,
            "devices": e.target.devices,
            "data_sheet": None if e.target.gpu is None else dataclasses.asdict(e.target.gpu),
        },
        "parameters": {**dataclasses.asdict(parameters), "total": parameters.total},
        "trained_parameters": trained_parameters(e.config, e.settings.lora),
        "flops": {
            "sequence_length": length or e.config.context_length,
            "forward": forward | {"total": sum(forward.values())},
            "backward": backward | {"total": sum(backward.values())},
            "optimizer_step": update_flops(e.settings, e.config),
            "step": e.step_flops,
        },
        "memory": {**dataclasses.asdict(m), "total": m.total, "available": e.target.memory},
        "speed": None
        if speed is None
        else {
            "device": e.target.name,
            "flops_per_second": round(speed.flops_per_second),
            "matmul_flops_per_second": round(speed.matmul_flops_per_second),
            "utilization": round(speed.utilization, 3),
            "tokens_per_second": round(speed.tokens_per_second, 1),
            "measured": None if speed.measured is None else dataclasses.asdict(speed.measured),
        },
        "batch_size": o.batch_size,
        "largest_batch_size": e.largest_batch,
        "price_per_hour": price_per_hour,
        "run": _budget(e, e.run_tokens, price_per_hour) | {"max_steps": o.max_steps},
        "budget": _budget(e, tokens, price_per_hour),
    }


def _budget(estimate: Estimate, tokens: int, price_per_hour: float | None) -> dict[str, float | None]:
    seconds, dollars = estimate.seconds(tokens), None
    if seconds is not None and price_per_hour is not None:
        dollars = round(seconds / 3600 * price_per_hour * estimate.target.devices, 2)
    return {
        "tokens": tokens,
        "steps": math.ceil(estimate.settings.shapes.steps(tokens)),
        "seconds": None if seconds is None else round(seconds, 1),
        "dollars": dollars,
    }


def estimate_tables(estimate: Mapping[str, Any]) -> RenderableType:
    """Tables of what `to_json` gave."""
    tables = [_parameters(estimate), _flops(estimate), _memory(estimate), _time(estimate)]
    return Group(*tables, *(_formula(estimate["formula"]) if "formula" in estimate else ()))


def _parameters(estimate: Mapping[str, Any]) -> Table:
    table = _table("Parameters", "", "number", "share")
    parameters = estimate["parameters"]
    for name, value in parameters.items():
        number = exact(value) if name == "total" else f"{value:,}"
        table.add_row(_name(name), number, f"{value / parameters['total']:.1%}")
    if (trained := estimate["trained_parameters"]) != parameters["total"]:
        table.add_row("trained (LoRA)", exact(trained), f"{trained / parameters['total']:.1%}")
    return table


def _flops(estimate: Mapping[str, Any]) -> Table:
    flops = estimate["flops"]
    table = _table(f"Operations of one sequence of {flops['sequence_length']:,} tokens", "", "number", "share")
    total = flops["forward"]["total"]
    for name, forward in flops["forward"].items():
        if name != "total":
            table.add_row(_name(name), f"{forward:,}", f"{forward / total:.1%}")
    table.add_row("forward pass", exact(total), "100.0%")
    table.add_row("backward pass", exact(flops["backward"]["total"]), "")
    table.add_row("optimizer step", exact(flops["optimizer_step"]), "")
    table.add_row("a step of all windows", exact(flops["step"]), "")
    return table


def _memory(estimate: Mapping[str, Any]) -> Table:
    memory = estimate["memory"]
    each = " in each process" if estimate["machine"]["devices"] > 1 else ""
    windows = "1 window" if estimate["batch_size"] == 1 else f"{estimate['batch_size']:,} windows"
    title = f"Memory at the peak of a step{each}, {windows} at once"
    table = _table(title, "", "bytes", "share")
    parts: dict[str, int] = {}
    for name, value in memory.items():
        if name == "activations":
            parts |= {f"activations: {component}": size for component, size in value.items()}
        elif name not in {"total", "available", "all_gradients"}:
            parts[name] = value
    for name, size in {**parts, "total": memory["total"]}.items():
        if size:
            table.add_row(_name(name), exact(size, "B"), f"{size / memory['total']:.1%}")
    available, largest = memory["available"], estimate["largest_batch_size"]
    if available is None:
        table.add_row("available", "unknown: give --memory", "")
    else:
        table.add_row("available", exact(available, "B"), "")
        table.add_row("largest batch_size that fits", f"{largest:,}" if largest else "none", "")
    return table


def _time(estimate: Mapping[str, Any]) -> Table:
    machine, speed, run, budget = (estimate[name] for name in ("machine", "speed", "run", "budget"))
    several = f"{machine['devices']:,} x " if machine["devices"] > 1 else ""
    if speed is None:
        table = _table(f"Time on {several}{machine['name']}", "", "")
        table.add_row("unknown", "give --peak-flops")
        return table
    measured, sheet = speed["measured"], machine["data_sheet"]
    table = _table(f"Time on {several}{machine['name']}", "", "measured" if measured else "estimated")
    table.add_row("matrix products", f"{_rate(speed['matmul_flops_per_second'])}")
    table.add_row("training", f"{_rate(speed['flops_per_second'])} ({speed['utilization']:.0%})")
    table.add_row("tokens per second", f"{speed['tokens_per_second']:,.0f}")
    if measured:
        table.add_row("memory held at most", exact(measured["peak_bytes"], "B"))
    table.add_row(f"max_steps ({run['max_steps']:,} steps, {run['tokens']:,} tokens)", _cost(run))
    if budget["tokens"] != run["tokens"]:
        table.add_row(f"{budget['tokens']:,} tokens ({budget['steps']:,} steps)", _cost(budget))
    if sheet is not None:
        rates = [f"{sheet[key] / 1e12:,.1f} in {name}" for key, name in _PRECISIONS.items() if sheet[key] is not None]
        table.caption = f"{sheet['source']}: TFLOP/s {', '.join(rates)}; memory as nvidia-smi reports it."
        table.caption_justify = "left"
    return table


def _formula(formula: Mapping[str, Any]) -> list[RenderableType]:
    """The algebra of a step: symbols, parameters, activations, memory, operations, and the largest batch."""
    symbols = "\n".join(f"{symbol} = {value:,}: {meaning}" for symbol, (meaning, value) in formula["symbols"].items())
    tables: list[RenderableType] = [f"\nBy the textbook's count, in float32, for a batch of B windows\n{symbols}"]
    for title, unit, lines in (
        ("Parameters", "number", [formula["parameters"]]),
        ("Activations of a token", "numbers", formula["activations"]),
        ("Memory", "bytes", formula["memory"]),
        ("Operations", "number", formula["operations"]),
    ):
        table = Table("", "formula", title=title, title_justify="left", title_style="bold")
        table.add_column(unit, justify="right")
        for line in lines:
            table.add_row(line["name"], line["formula"], line["value"])
        tables.append(table)
    slope, constant, memory = (formula[name] for name in ("slope", "constant", "memory_bytes"))
    solution = f"total: {slope / _GIB:.2f}*B + {constant / _GIB:.2f} GiB"
    if memory is not None:
        quotient = f"({memory:,} - {constant:,}) / {slope:,} = {(memory - constant) / slope:.2f}"
        largest = f"B = {formula['largest_batch']:,}" if formula["largest_batch"] else "none fits"
        solution += f". In {memory / _GIB:.2f} GiB: B <= {quotient}, so {largest}"
    return [*tables, solution]


def _cost(budget: Mapping[str, Any]) -> str:
    dollars = budget["dollars"]
    return _duration(budget["seconds"]) + ("" if dollars is None else f", {dollars:,.2f} dollars")


def comparison(configs: Mapping[str, ModelConfig], length: int | None) -> RenderableType:
    """Parameters and forward passes of several models: one a row, and then each component with its exact number."""
    title = f"One forward pass of {length:,} tokens" if length else "One forward pass of a full context"
    summary = Table(box=None, padding=(0, 1, 0, 0), title=title, title_justify="left", title_style="bold")
    for name in ("model", "parameters", "FLOPs", "projections", "scores", "feed-forward", "output"):
        summary.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    details = _table("The same by component", "model", "operations of", "number", "share")
    details.columns[1].justify = "left"
    for name, config in configs.items():
        flops = forward_flops(config, length=length)
        parts = dataclasses.asdict(flops)
        shares = [f"{part / flops.total:.1%}" for part in parts.values()]
        summary.add_row(name, f"{count_parameters(config).total:,}", f"{flops.total:,}", *shares)
        for (component, number), share in zip(parts.items(), shares, strict=True):
            details.add_row(name, _name(component), f"{number:,}", share)
        details.add_row(name, "forward pass", exact(flops.total), "100.0%")
        details.add_row(name, "AdamW's step", exact(optimizer_flops(config)), "", end_section=True)
    return Group(summary, details)


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(first, title=title, title_justify="left", title_style="bold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _name(name: str) -> str:
    return _NAMES.get(name, name)


def exact(value: int, unit: str = "") -> str:
    """A number with its rounded form behind it: `2,127,057,600 (2.13 B)`, or with a unit `(2.13 GB)`."""
    thousands = "kMGTPE" if unit else "KMBTPE"
    place = min((len(str(abs(value))) - 1) // 3, len(thousands))
    if place == 0:
        return f"{value:,}"
    return f"{value:,} ({value / 1000**place:.2f} {thousands[place - 1]}{unit})"


def _rate(flops_per_second: float) -> str:
    scale, prefix = (1e12, "T") if flops_per_second >= 1e12 else (1e9, "G")
    return f"{flops_per_second / scale:,.1f} {prefix}FLOP/s"


def _duration(seconds: float) -> str:
    """`1:02:03`, `12.3 days`, `6,583.6 days (18.0 years)`, or `3.2e+22 years`."""
    days = seconds / 86_400
    years = days / 365.25
    if days < 1:
        return str(timedelta(seconds=round(seconds)))
    if years < 1:
        return f"{days:,.1f} days"
    return f"{days:,.1f} days ({years:,.1f} years)" if years < 1e6 else f"{years:.1e} years"
