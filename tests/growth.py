"""How time and memory grow: for algorithms whose time must not grow with the square of what they are given."""

import gc
import sys
import time
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType


def growth(work: Callable[[int], object], small: int, large: int) -> float:
    """The CPU time of this thread for `large`, in multiples of that for `small`; of both the least of three.

    Time in proportion to the size gives `large / small`, and time that grows with its square the square of that.
    """

    def seconds(size: int) -> float:
        begin = time.thread_time()
        work(size)
        return time.thread_time() - begin

    gc.collect()
    gc.disable()  # it would go through all that other tests of this process left
    try:
        times = [(seconds(small), seconds(large)) for _ in range(3)]
    finally:
        gc.enable()
    return min(large for _, large in times) / min(small for small, _ in times)


def state_bytes(thing: object, *, without: type) -> int:
    """The memory of all that an object holds, except for classes, functions, and instances of `without`.

    What takes one item after the other in bounded memory cannot look at all earlier ones again.
    """
    shared = (type, ModuleType, FunctionType, BuiltinFunctionType, without)
    seen: dict[int, object] = {}
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, shared):
            seen[id(one)] = one
            waiting += gc.get_referents(one)
    return sum(map(sys.getsizeof, seen.values()))
