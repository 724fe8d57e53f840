"""A profile as text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

OTHER = "other"
"""The stage of what is in no other."""

NOTES = (
    "Seconds are those of all threads together, without the stages inside; they may exceed the time of the job.",
    f"{OTHER}: the first thread outside all stages. Threads that a stage starts are not in its CPU time.",
)


@dataclass(frozen=True)
class Cells:
    """A table whose texts are ready to show: the first column is text, the others are numbers."""

    headings: list[str]
    rows: list[list[str]]

    def lines(self) -> list[str]:
        """In plain text."""
        table = Table(box=SIMPLE_HEAD)
        for number, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if number else "left", no_wrap=bool(number))
        for row in self.rows:
            table.add_row(*map(Text, row))
        console = Console(file=StringIO(), width=120, color_system=None)
        console.print(table)
        assert isinstance(console.file, StringIO)
        return console.file.getvalue().splitlines()


def profile_text(content: Mapping[str, Any], *, operators: bool = True) -> str:
    """The content of `profile.json` for people.

    Args:
        content: As `Profile.content` gives it, or `train`.
        operators: With those of a trace.
    """
    lines = [*summary_lines(content), *stage_cells(content).lines(), *NOTES]
    if operators and "traced" in content:
        lines += ["", f"traced: {content['traced']}"]
        lines += operator_cells(content["operators"]).lines() if content["operators"] else []
    return "".join(f"{line.rstrip()}\n" for line in lines)


def summary_lines(content: Mapping[str, Any]) -> list[str]:
    """The job as a whole."""
    scale, name = _scale(content["unit"])
    threads = f" of {content['threads']} threads" if content["threads"] > 1 else ""
    whole = (
        f"{content['job']}: {content['amount']:,} {content['unit']} in {content['seconds']:.2f} s, "
        f"{content['per_second'] / scale:,.1f} {name} a second; {content['processor_seconds']:.2f} s of CPU time"
        f"{threads}; peak memory {content['peak_memory'] / 1e6:,.0f} MB"
    )
    return [whole, *(_training_lines(content) if "steps" in content else ())]


def _training_lines(content: Mapping[str, Any]) -> list[str]:
    """What a profile of training has beside that of other jobs."""
    steps = f"{content['steps']:,} step{'' if content['steps'] == 1 else 's'} on {content['device']}"
    if content["processes"] > 1:
        steps += f", in the first of {content['processes']} processes; tokens and rates are those of all"
    lines = [steps]
    rate, flops, most = (content[f"{name}_per_second"] for name in ("tokens", "flops", "matmul_flops"))
    if rate is not None and flops is not None:
        measured = f"{content['measured_steps']:,} measured steps, without the warm-up and those traced"
        lines.append(f"{measured}: {rate:,.0f} tokens/s, {flops / 1e9:,.1f} GFLOP/s")
        if most:
            alone = f"{most / 1e9:,.1f} GFLOP/s that the model's matrix products reach alone"
            lines[-1] += f": utilization {flops / most:.1%} of the {alone}"
    if content["device_peak_memory"] is not None:
        lines.append(f"peak memory of tensors on the GPU: {content['device_peak_memory'] / 1e6:,.0f} MB")
    memory = content["estimated_memory"]
    parts = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in memory.items() if size)
    return [*lines, f"memory of a step, estimated: {sum(memory.values()) / 1e6:,.0f} MB: {parts}"]


def stage_cells(content: Mapping[str, Any]) -> Cells:
    """The stages, the longest first."""
    scale, name = _scale(content["unit"])
    has_device = any(use["device_seconds"] for use in content["stages"])
    device = ["on the\nGPU"] if has_device else []
    amounts = [f"{name}\n{content['unit']}", f"{name}\na second"]
    rows = [
        [
            use["name"],
            f"{use['share']:.1%}",
            *([f"{use['device_seconds']:.3f}"] if has_device else []),
            f"{use['seconds']:.3f}",
            f"{use['processor_seconds']:.3f}" if use["calls"] else "–",
            f"{use['calls']:,}" if use["calls"] else "–",
            f"{use['amount'] / scale:,.1f}" if use["amount"] else "–",
            f"{use['per_second'] / scale:,.1f}" if use["per_second"] else "–",
            f"{use['peak_memory'] / 1e6:,.0f}" if use["peak_memory"] else "–",
        ]
        for use in content["stages"]
    ]
    return Cells(["stage", "share", *device, "seconds", "CPU\nseconds", "calls", *amounts, "memory\nMB"], rows)


def operator_cells(operators: Sequence[Mapping[str, Any]]) -> Cells:
    """The operators of a trace, those first that took the most time themselves."""
    has_device = any(row["device_seconds"] for row in operators)
    device = ["on the\nGPU, ms"] if has_device else []
    rows = [
        [
            row["name"],
            f"{row['share']:.1%}",
            *([f"{row['device_seconds'] * 1e3:,.1f}"] if has_device else []),
            f"{row['seconds'] * 1e3:,.1f}",
            f"{row['total_seconds'] * 1e3:,.1f}" if row["total_seconds"] else "–",
            f"{row['calls']:,}",
            f"{round(row['memory'] / 1e6, 1) + 0.0:,.1f}",  # 0.0, where it is -0.0
        ]
        for row in operators
    ]
    return Cells(["operator", "share", *device, "itself\nms", "with what it\ncalls, ms", "calls", "memory\nMB"], rows)


def _scale(unit: str) -> tuple[float, str]:
    """What amounts of a unit are shown in."""
    return (1e3, "thousand") if unit == "tokens" else (1e6, "million")
