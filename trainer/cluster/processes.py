"""Tasks in processes of this machine, for work that holds Python's global lock."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from trainer.console.signals import StopRequest
from trainer.errors import InterruptedRunError, TrainerError

Item = TypeVar("Item")
Result = TypeVar("Result")

_POLL_SECONDS = 0.5  # how soon a signal is noticed


class LostProcessError(TrainerError):
    """A process was killed; what the others have finished is as good as before."""


def run_in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], processes: int, stop: StopRequest
) -> Iterator[tuple[int, Result]]:
    """The results of `function` for each item, with its number, in the order in which they are ready.

    Args:
        function: Can be pickled; an exception that it raises ends everything.
        items: Their order is that in which they begin.
        processes: How many work; with 1 it is this one.
        stop: Looked at between two items.

    Raises:
        InterruptedRunError: If a signal came; tasks that have begun are finished first.
        LostProcessError: If a process was killed.
    """
    if min(processes, len(items)) <= 1:
        for number, item in enumerate(items):
            _check(stop)
            yield number, function(item)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy threads that hold locks
    with ProcessPoolExecutor(min(processes, len(items)), context, _ignore_signals) as pool:
        waiting: dict[Future[Result], int] = {}
        following = iter(enumerate(items))
        try:
            while True:
                for number, item in following:
                    waiting[pool.submit(function, item)] = number
                    if len(waiting) >= 2 * processes:  # results are not gathered in memory
                        break
                if not waiting:
                    return
                done, _ = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
                _check(stop)
                for future in done:
                    yield waiting.pop(future), future.result()
        except BrokenProcessPool:
            raise LostProcessError(
                "a worker process was killed, perhaps since memory is short: use fewer --workers; what is finished is "
                "kept, and the same command continues"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _check(stop: StopRequest) -> None:
    if stop.signal_number is not None:
        raise InterruptedRunError("stopped", stop.signal_number)


def _ignore_signals() -> None:
    """Ctrl-C goes to all processes of the terminal; the first one decides. One thread each: the processes share."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for library in ("RAYON", "OMP", "NUMBA"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
