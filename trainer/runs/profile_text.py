"""A profile as text."""

from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

OTHER = "other"
"""The stage of what is in no other."""

_NOTES = (
    "Seconds are those of all threads together, without the stages inside; they may exceed the time of the job.",
    f"{OTHER}: the first thread outside all stages. Threads that a stage starts are not in its processor time.",
)


def profile_text(content: Mapping[str, Any], *more: str) -> str:
    """The content of `profile.json` for people.

    Args:
        content: As `Profile.content` gives it.
        more: Lines that follow the first one.
    """
    return text_of([_summary(content), *more, *table_lines(_stage_table(content)), *_NOTES])


def text_of(lines: Iterable[str]) -> str:
    """Lines, without white space at their ends."""
    return "".join(f"{line.rstrip()}\n" for line in lines)


def table_lines(table: Table) -> list[str]:
    """A table in plain text."""
    console = Console(file=StringIO(), width=120, color_system=None)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def new_table(first: str, *others: str) -> Table:
    """A table whose first column is text, and whose others are numbers."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _stage_table(content: Mapping[str, Any]) -> Table:
    scale, name = scale_of(content["unit"])
    has_device = any(use["device_seconds"] for use in content["stages"])
    device = ["on the\nGPU"] if has_device else []
    amounts = [f"{name}\n{content['unit']}", f"{name}\na second"]
    table = new_table("stage", "share", *device, "seconds", "on a\nprocessor", "calls", *amounts, "memory\nMB")
    for use in content["stages"]:
        table.add_row(
            use["name"],
            f"{use['share']:.1%}",
            *([f"{use['device_seconds']:.3f}"] if has_device else []),
            f"{use['seconds']:.3f}",
            f"{use['processor_seconds']:.3f}" if use["calls"] else "–",
            f"{use['calls']:,}" if use["calls"] else "–",
            f"{use['amount'] / scale:,.1f}" if use["amount"] else "–",
            f"{use['per_second'] / scale:,.1f}" if use["per_second"] else "–",
            f"{use['peak_memory'] / 1e6:,.0f}" if use["peak_memory"] else "–",
        )
    return table


def scale_of(unit: str) -> tuple[float, str]:
    """What amounts of a unit are shown in."""
    return (1e3, "thousand") if unit == "tokens" else (1e6, "million")


def _summary(content: Mapping[str, Any]) -> str:
    scale, name = scale_of(content["unit"])
    threads = f" of {content['threads']} threads" if content["threads"] > 1 else ""
    return (
        f"{content['job']}: {content['amount']:,} {content['unit']} in {content['seconds']:.2f} s, "
        f"{content['per_second'] / scale:,.1f} {name} a second; {content['processor_seconds']:.2f} s of processor "
        f"time{threads}; peak memory {content['peak_memory'] / 1e6:,.0f} MB"
    )
