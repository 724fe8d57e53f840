"""What reports of several benchmarks are made of."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Verdict(NamedTuple):
    """A target, what was measured, and whether that meets it."""

    target: str
    measured: str
    met: bool


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
