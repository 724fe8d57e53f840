"""How threads share a step.

A step is a sequence of *phases*, each of so many items that do not depend on each other. A thread takes items one by
one until none is left, and starts the next phase when all items are done. A thread that the system has not scheduled
yet delays no other: when it runs, it skips the phases that are done, and joins. A thread is waited for only while it
holds an item.
"""

from services.inference.engine.runner.cpu.kernels.intrinsics import CACHE_LINE, finish
from services.inference.engine.runner.cpu.kernels.layout import Threads
from shared.kernels.compiling import inlined
from shared.kernels.intrinsics import take_ticket
from shared.kernels.types import int64

PHASE_WORDS = CACHE_LINE
"""Of each phase, in one array: the next item, and how many are done."""
ROWS = 2
"""Rows of an item, where one takes hardly longer than to hand it out."""


@inlined
def take_item(threads: Threads, phase: int64) -> int64:
    """The next item of a phase; from their number on, there are no more."""
    return take_ticket(threads.phases, phase * PHASE_WORDS)


@inlined
def finish_phase(threads: Threads, phase: int64, done: int64, items: int64) -> int64:
    """Say how many items this thread has done, and wait until all are; returns the next phase."""
    finish(threads.phases, phase * PHASE_WORDS + 1, done, items)
    return phase + 1
