"""Two processes that train together, each on a machine of its own, as threads."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from trainer.compute.processes import Processes

Result = TypeVar("Result")
COUNT = 2


class _Exchange:
    def __init__(self) -> None:
        self.arrived = threading.Barrier(COUNT, timeout=20)
        self.values: dict[int, Sequence[float]] = {}


@dataclass(frozen=True)
class Machine(Processes):
    """One of the processes; the first one of its machine."""

    count: int = COUNT
    exchange: _Exchange = field(default_factory=_Exchange)

    @property
    def is_first_here(self) -> bool:
        return True

    def all_reduce(self, values: Sequence[float]) -> list[float]:
        self.exchange.values[self.rank] = values
        self.exchange.arrived.wait()
        sums = [sum(each) for each in zip(*self.exchange.values.values(), strict=True)]
        self.exchange.arrived.wait()
        return sums

    def barrier(self) -> None:
        self.exchange.arrived.wait()


def on_two_machines(function: Callable[[Processes], Result]) -> list[Result]:
    """What a function returns that both call at the same time."""
    exchange = _Exchange()
    with ThreadPoolExecutor(COUNT) as pool:
        return list(pool.map(lambda rank: function(Machine(rank, exchange=exchange)), range(COUNT)))
