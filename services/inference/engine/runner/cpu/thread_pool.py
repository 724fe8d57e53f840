"""A pool of threads that run prepared kernel calls in parallel, for the life of the process."""

import _thread
import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from shared.kernels.compiling import Call

_START_SECONDS = 60.0

if sys.platform == "linux":
    _current_processor = ctypes.CDLL(None).sched_getcpu


class KernelThreadPool:
    """`num_threads` threads, of which the caller is one. Between two runs the others sleep.

    The caller never waits for a thread that has not begun, since others have its processor: it takes over its call.

    On Linux they avoid the caller's processor. The system often wakes them there, since another processor is busy for a
    moment, and there they would wait for the caller or preempt it. `exclude_process` keeps another process off it.

    Args:
        num_threads: At least 1.

    Raises:
        MemoryError: Not all of them could be started.
    """

    def __init__(self, num_threads: int):
        self.num_threads = num_threads
        self._workers = [_Worker(number) for number in range(1, num_threads)]
        self._processors = os.sched_getaffinity(0) if sys.platform == "linux" else set()
        self._callers_processor = -1
        self._neighbor: int | None = None

    def exclude_process(self, process: int) -> None:
        """Make a process that this one wakes in each step avoid the caller's processor too.

        Where it is woken there, it stops the caller, and the other threads soon have to wait.

        Args:
            process: Its id.
        """
        self._neighbor = process
        self._callers_processor = -1  # as if it had moved

    def run(self, calls: Sequence[Call]) -> None:
        """Run each call, the first in the caller's thread; the others in threads of their own, or behind it.

        Args:
            calls: At most `num_threads`; the other threads sleep on.
        """
        workers = self._workers[: len(calls) - 1]
        if len(self._processors) > 1 and (workers or self._neighbor):
            self._free_processor(_current_processor())
        for worker, call in zip(workers, calls[1:], strict=True):
            worker.start(call)
        calls[0].run_only()
        for worker, call in zip(workers, calls[1:], strict=True):
            if worker.take_back():
                call.run_only()
            else:
                worker.join()

    def close(self) -> None:
        """End the threads."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def _free_processor(self, processor: int) -> None:
        if processor == self._callers_processor:
            return
        self._callers_processor = processor
        threads = [worker.native_id for worker in self._workers]
        with contextlib.suppress(OSError):  # it has ended
            if self._neighbor:
                threads += [int(task.name) for task in Path(f"/proc/{self._neighbor}/task").iterdir()]
        for thread in threads:
            with contextlib.suppress(OSError):  # forbidden, or a container's processors are others by now
                os.sched_setaffinity(thread, self._processors - {processor})


class _Worker:
    """A thread that runs what it is handed, one call after the other."""

    def __init__(self, number: int):
        self._call: Call | None = None
        # Locks rather than events or conditions: those are made of locks, and of bookkeeping in Python.
        self._wanted, self._done = threading.Lock(), threading.Lock()
        self._wanted.acquire()
        self._done.acquire()
        self.native_id = 0
        try:
            _thread.start_new_thread(self._serve, ())
        except RuntimeError:
            begun = False
        else:
            # `threading.Thread.start` would wait forever for a thread that has no memory for its first steps.
            begun = self._done.acquire(timeout=_START_SECONDS)
        if not begun:
            raise MemoryError(
                f"thread {number + 1} of the engine did not start: too little memory, or the limit on the number of "
                "processes is reached; lower OWNLM_THREADS"
            )

    def start(self, call: Call) -> None:
        self._call = call
        self._wanted.release()

    def take_back(self) -> bool:
        """Whether it has not begun, and will not."""
        return self._wanted.acquire(blocking=False)

    def join(self) -> None:
        self._done.acquire()

    def close(self) -> None:
        self._call = None
        self._wanted.release()
        self._done.acquire()

    def _serve(self) -> None:
        self.native_id = threading.get_native_id()
        self._done.release()
        while True:
            self._wanted.acquire()
            if self._call is None:
                break
            self._call.run_only()
            self._done.release()
        self._done.release()
