"""The edge of stability of a learning rate sweep: where the rates begin at which training diverges."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.sweep.studies import RATE, Changes

_SEED = "seed"
_OUTWARD = 10.0  # where all rates are on one side of the edge
_LOWEST, _HIGHEST = 1e-8, 1e8  # beyond, float32 weights do not change or overflow at once: there is no edge to find


@dataclass(frozen=True)
class Edge:
    """Two learning rates, next to each other among those tried, between which training begins to diverge.

    Attributes:
        group: The other settings that vary, of the runs compared; without the seed.
        stable: The largest rate below `diverged` at which no run diverged; None if there is none.
        diverged: The smallest rate at which a run diverged; None if there is none.
    """

    group: Mapping[str, Any]
    stable: float | None
    diverged: float | None

    def mark(self, rate: object) -> str:
        """What a rate is; empty for most, and for a run that is not yet known to have one."""
        if rate is None:
            return ""
        if rate == self.stable and self.diverged is not None:
            return "largest stable rate"
        return "smallest diverging rate" if rate == self.diverged else ""

    def __str__(self) -> str:
        where = ", ".join(f"{name}={value}" for name, value in self.group.items())
        begin = f"Edge of stability{f' with {where}' if where else ''}: "
        if self.diverged is None:
            return f"{begin}above {self.stable:g}, the largest rate tried; none diverged."
        if self.stable is None:
            return f"{begin}below {self.diverged:g}, the smallest rate tried; it diverged."
        return f"{begin}between {self.stable:g}, the largest stable rate, and {self.diverged:g}, which diverged."


@dataclass
class _Rates:
    stable: set[float] = field(default_factory=set)
    diverged: set[float] = field(default_factory=set)


def group_of(changes: Mapping[str, Any]) -> str:
    """A key that is the same for runs that differ in learning rate and seed only."""
    return json.dumps(_others(changes), sort_keys=True, default=repr)


def find_edges(runs: Iterable[tuple[Mapping[str, Any], str]], *, least_rates: int = 2) -> dict[str, Edge]:
    """The edge in each group of runs, by `group_of`.

    Args:
        runs: The changes and the status of each; those that neither finished nor diverged do not count.
        least_rates: Groups of fewer learning rates are left out.
    """
    groups: dict[str, _Rates] = {}
    others: dict[str, Changes] = {}
    for changes, status in runs:
        rate = changes.get(RATE)
        if status not in ("finished", "diverged") or not isinstance(rate, int | float):
            continue
        key = group_of(changes)
        others[key] = _others(changes)
        rates = groups.setdefault(key, _Rates())
        (rates.diverged if status == "diverged" else rates.stable).add(float(rate))
    enough = {key: rates for key, rates in groups.items() if len(rates.stable | rates.diverged) >= least_rates}
    return {key: _edge(others[key], rates) for key, rates in enough.items()}


def _edge(group: Changes, rates: _Rates) -> Edge:
    lowest = min(rates.diverged, default=math.inf)
    below = [rate for rate in rates.stable - rates.diverged if rate < lowest]
    return Edge(group, max(below, default=None), lowest if math.isfinite(lowest) else None)


def refine(runs: Sequence[tuple[Changes, str]]) -> list[Changes]:
    """Changes of the runs that halve the interval (by ratio) of every edge, each with all seeds of its group.

    Where every rate is stable, or every one diverged, the next rate is ten times the largest, or a tenth of the
    smallest. Nothing where no rate of three digits lies in between.
    """
    more: list[Changes] = []
    for key, edge in find_edges(runs, least_rates=1).items():
        rate = _next_rate(edge)
        if rate is None:
            continue
        own = [changes for changes, _ in runs if group_of(changes) == key]
        renewed = [changes | {RATE: rate} for changes in own]
        more += [changes for place, changes in enumerate(renewed) if changes not in renewed[:place]]
    return more


def _next_rate(edge: Edge) -> float | None:
    low, high = edge.stable, edge.diverged
    if low is None:
        assert high is not None
        low = high / _OUTWARD**2
    high = low * _OUTWARD**2 if high is None else high
    middle = float(f"{math.sqrt(low) * math.sqrt(high):.3g}")
    return middle if max(low, _LOWEST) < middle < min(high, _HIGHEST) else None


def without_seed(changes: Mapping[str, Any]) -> Changes:
    """What sets a run apart except for chance."""
    return {name: value for name, value in changes.items() if name != _SEED}


def _others(changes: Mapping[str, Any]) -> Changes:
    return {name: value for name, value in changes.items() if name not in (RATE, _SEED)}
