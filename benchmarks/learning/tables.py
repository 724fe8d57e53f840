"""Curves as tables in Markdown."""

from collections.abc import Iterable, Sequence

from benchmarks.learning.curves import Curve
from benchmarks.report import table

_MISSING = "–"


def summary(curves: Sequence[Curve]) -> str:
    """Each run's end, and when the first curve, ours, was as low."""
    ours = curves[0]
    rows = []
    for curve in curves:
        end = curve.end
        reached = ours.seconds_to(end.bits_per_byte)
        share = _MISSING if reached is None or curve is ours else f"{reached / end.seconds:.2f}"
        rows.append([
            f"**{curve.name}**" if curve is ours else curve.name,
            f"{curve.parameters / 1e6:.2f} M", f"{end.tokens / 1e6:.2f} M", f"{end.tokens / end.seconds:,.0f}",
            f"{end.seconds / 60:.1f}", f"{end.loss:.4f}", f"{end.bits_per_byte:.4f}", share,
        ])  # fmt: skip
    head = [
        "recipe", "parameters", "tokens", "tokens/s", "minutes", "validation loss", "bits per byte",
        "share of that time after which ours is as low",
    ]  # fmt: skip
    return table(head, rows)


def points(curves: Iterable[Curve]) -> str:
    """All evaluations."""
    rows = [
        [curve.name, f"{p.tokens:,}", f"{p.seconds / 60:.2f}", f"{p.loss:.4f}", f"{p.bits_per_byte:.4f}"]
        for curve in curves
        for p in curve.points
    ]
    return table(["recipe", "tokens", "minutes", "validation loss", "bits per byte"], rows)
