"""Threads that share work with the one that asks for it, none of which is waited for in vain.

`threading.Thread.start` waits until the thread says that it runs. One that has no memory for its first steps never
does, so that a pool made of such threads may wait forever. Here the caller works too, and waits only for work that a
thread has begun: a thread that does not start is one fewer.
"""

import _thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Task(Generic[T]):
    """Work that was given to a pool. To say how it ended takes no memory, which may be what it ended for.

    Attributes:
        error: What it raised.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: T
        self.error: BaseException | None = None
        self._is_begun = False
        self._unfinished = _thread.allocate_lock()
        self._unfinished.acquire()

    @property
    def is_done(self) -> bool:
        """Whether it has ended, with a result or an error."""
        return not self._unfinished.locked()

    @property
    def is_running(self) -> bool:
        """Whether it has begun and not ended."""
        return self._is_begun and not self.is_done

    def run(self) -> None:
        """Do the work; the error that it ends with, if any, is kept for the one who asks for the result."""
        self._is_begun = True
        try:
            self._result = self._work()
        except BaseException as error:
            self.error = error
        finally:
            self._unfinished.release()

    def wait(self) -> None:
        """Wait until it has ended."""
        with self._unfinished:
            pass

    def outcome(self) -> T:
        """The result of work that has ended, or its error raised."""
        if self.error is not None:
            raise self.error
        return self._result


class WorkPool:
    """Up to `threads` threads, the caller's among them. Leaving it drops what is not begun, and waits for the rest.

    Args:
        threads: At least 1.
    """

    def __init__(self, threads: int) -> None:
        self._tasks: deque[Task[object]] = deque()  # not begun
        self._helpers = [_Helper(self._tasks) for _ in range(threads - 1)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tasks.clear()
        for helper in self._helpers:
            helper.wait()

    def submit(self, work: Callable[[], T], *, at_once: bool = False) -> Task[T]:
        """Give the pool something to do, in another thread if there is one, else when a result is asked for.

        `at_once` where the caller does something else meanwhile; else it takes one task itself, and threads the others.
        """
        task = Task(work)
        self._tasks.append(task)  # type: ignore[arg-type]  # a queue of all kinds
        if at_once or len(self._tasks) > 1:
            for helper in self._helpers:
                if helper.is_idle:
                    helper.start()
                    break
        return task

    def result(self, task: Task[T]) -> T:
        """Wait for a task, and work on others meanwhile; what it gives, or the error that it ended with."""
        while not task.is_done:
            try:
                other = self._tasks.popleft()
            except IndexError:
                task.wait()
                break
            other.run()
            if isinstance(other.error, KeyboardInterrupt | SystemExit):
                raise other.error  # it was the caller that was meant
        return task.outcome()


class _Helper:
    """A thread that works as long as there are tasks, and is started again when there are more."""

    def __init__(self, tasks: deque[Task[object]]) -> None:
        self.is_idle = True
        self._tasks = tasks
        self._working = _thread.allocate_lock()

    def start(self) -> None:
        self.is_idle = False
        with suppress(MemoryError, RuntimeError):  # no memory, or no thread is allowed: the others do the work
            _thread.start_new_thread(self._work, ())

    def wait(self) -> None:
        """Wait for the task that it has begun; one that never came to run has begun none."""
        with self._working:
            pass

    def _work(self) -> None:
        with self._working:
            while self._tasks:
                try:
                    task = self._tasks.popleft()
                except IndexError:  # another was faster
                    break
                task.run()
        self.is_idle = True


def in_order(work: Iterable[Callable[[], T]], threads: int) -> Iterator[T]:
    """The results of work in its order, by so many threads; little of it is begun before its turn."""
    work = iter(work)
    first = [*islice(work, 2)]
    if threads == 1 or len(first) < 2:  # there is nothing to share
        for one in chain(first, work):
            yield one()
        return
    waiting: deque[Task[T]] = deque()
    with WorkPool(threads) as pool:
        for one in chain(first, work):
            waiting.append(pool.submit(one))
            if len(waiting) > 2 * threads:
                yield pool.result(waiting.popleft())
        while waiting:
            yield pool.result(waiting.popleft())
