"""A thread pool that cannot hang if a thread does not start.

`threading.Thread.start` waits until the new thread signals that it runs. A thread that has no memory for its first
steps never does, so a pool of such threads may wait forever. Here the caller works too, and waits only for tasks that a
thread has begun: if a thread does not start, there is one fewer.
"""

import _thread
import atexit
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Generic, Self, TypeVar

T = TypeVar("T")

_SECONDS_TO_BEGIN = 5.0
_starting: set["_Helper"] = set()  # whose threads were started and have not begun


def new_lock() -> _thread.LockType:
    """A lock that is not held.

    Raises:
        MemoryError: There is no memory for it, which Python reports as a RuntimeError.
    """
    try:
        return _thread.allocate_lock()
    except RuntimeError:
        raise MemoryError from None


class Task(Generic[T]):
    """A task of a pool. Recording its outcome allocates no memory, since it may have run out of memory.

    Attributes:
        error: The exception that it raised, if any.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: T
        self.error: BaseException | None = None
        self._is_begun = False
        self._unfinished = new_lock()
        self._unfinished.acquire()

    @property
    def is_done(self) -> bool:
        """Whether it has finished, with a result or an error."""
        return not self._unfinished.locked()

    @property
    def is_running(self) -> bool:
        """Whether it has begun and not finished."""
        return self._is_begun and not self.is_done

    def run(self) -> None:
        """Do the work, and keep its result or its error."""
        self._is_begun = True
        try:
            self._result = self._work()
        except BaseException as error:
            self.error = error
        finally:
            self._unfinished.release()

    def wait(self) -> None:
        """Wait until it has finished."""
        with self._unfinished:
            pass

    def outcome(self) -> T:
        """The result of a finished task; raises its error instead if it has one."""
        if self.error is not None:
            raise self.error
        return self._result


class WorkPool:
    """Up to `threads` threads, including the caller's. On exit, tasks that have not begun are dropped.

    Args:
        threads: At least 1.
    """

    def __init__(self, threads: int) -> None:
        self._tasks: deque[Task[object]] = deque()  # tasks that have not begun
        self._helpers = [_Helper(self._tasks) for _ in range(threads - 1)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tasks.clear()
        for helper in self._helpers:
            helper.wait()

    def submit(self, work: Callable[[], T], *, at_once: bool = False) -> Task[T]:
        """Add a task. It runs in another thread if there is one, else when a result is awaited.

        With `at_once`, a thread starts for the first task too; else the caller is expected to run one itself.
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
        """The result of a task; runs other tasks while waiting. Raises the task's error instead if it has one."""
        while not task.is_done:
            try:
                other = self._tasks.popleft()
            except IndexError:
                task.wait()
                break
            other.run()
            if isinstance(other.error, KeyboardInterrupt | SystemExit):
                raise other.error  # signals are meant for the caller
        return task.outcome()


class _Helper:
    """A thread that runs while there are tasks, and is started again when there are more."""

    def __init__(self, tasks: deque[Task[object]]) -> None:
        self.is_idle = True
        self._tasks = tasks
        self._working = new_lock()

    def start(self) -> None:
        self.is_idle = False
        try:
            _starting.add(self)
            _thread.start_new_thread(self._work, ())
        except (MemoryError, RuntimeError):  # out of memory or threads: the others do the work
            _starting.discard(self)

    def wait(self) -> None:
        """Wait for the task that it has begun, if any."""
        with self._working:
            pass

    def _work(self) -> None:
        _starting.discard(self)
        with self._working:
            while self._tasks:
                try:
                    task = self._tasks.popleft()
                except IndexError:  # another thread took the last one
                    break
                task.run()
        self.is_idle = True


@atexit.register
def _wait_for_threads_to_begin() -> None:
    """Let no thread begin after the interpreter has ended.

    What it looks at first has been freed then, and the process may end with SIGSEGV (seen with Python 3.11.2, not with
    3.11.7). A thread that had no memory for its first steps never begins, so the time is limited.
    """
    end = time.monotonic() + _SECONDS_TO_BEGIN
    while _starting and time.monotonic() < end:
        time.sleep(0.001)


def in_order(work: Iterable[Callable[[], T]], threads: int) -> Iterator[T]:
    """The results of `work` in order, computed by this many threads, which run only a little ahead."""
    work = iter(work)
    first = [*islice(work, 2)]
    if threads == 1 or len(first) < 2:  # nothing to share
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
