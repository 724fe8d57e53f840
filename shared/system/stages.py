"""Names the stages of a job, so that a profiler can measure them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Protocol, TypeVar

T = TypeVar("T")


class Stage(Protocol):
    """Enters a stage of a job, on any thread; stages may be nested."""

    def __call__(self, name: str, amount: int = 0) -> AbstractContextManager[None]:
        """The stage lasts as long as the context.

        Args:
            name: What it does; the same name may be entered many times.
            amount: How much it works on this time, such as bytes.
        """


def no_stage(name: str, amount: int = 0) -> AbstractContextManager[None]:  # noqa: ARG001
    """The `Stage` without a profiler: measures nothing."""
    return nullcontext()


current_stage: ContextVar[Stage] = ContextVar("current_stage", default=no_stage)
"""The `Stage` of this thread's job, for code that cannot be given it, such as an operator of torch."""


def staged(items: Iterator[T], stage: Stage, name: str) -> Iterator[T]:
    """The items, with the time that each takes to come in a stage."""
    end = object()
    while True:
        with stage(name):
            item = next(items, end)
        if item is end:
            return
        yield item  # type: ignore[misc]  # it is no longer `end`
