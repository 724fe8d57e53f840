import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.system import thread_pool as work_pool
from shared.system.thread_pool import WorkPool, in_order


@pytest.fixture(params=["threads start", "none may start", "none gets to run"])
def starts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What becomes of new threads; those without memory for their first steps never get to run."""

    def refuse(work: Callable[[], None], arguments: tuple[()]) -> None:
        raise RuntimeError("can't start new thread")

    if request.param != "threads start":
        start = refuse if request.param == "none may start" else lambda work, arguments: None
        monkeypatch.setattr(work_pool._thread, "start_new_thread", start)
        monkeypatch.setattr(work_pool, "_starting", set())
    return str(request.param)


@pytest.mark.case("D30")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_order_whatever_becomes_of_the_threads(starts: str, threads: int) -> None:
    def work(number: int) -> int:
        time.sleep(0.001 * (number % 3))
        return number

    assert [*in_order((partial(work, number) for number in range(40)), threads)] == [*range(40)]


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 4))
def test_the_first_error_comes_in_its_turn(fails: list[bool], threads: int) -> None:
    def work(number: int) -> int:
        if fails[number]:
            raise ValueError(number)
        return number

    results = in_order((partial(work, number) for number in range(len(fails))), threads)
    whole = fails.index(True) if True in fails else len(fails)
    assert [*islice(results, whole)] == [*range(whole)]
    if whole < len(fails):
        with pytest.raises(ValueError, match=f"^{whole}$"):
            next(results)


def test_as_many_threads_work_as_are_asked_for_and_the_caller_is_one_of_them() -> None:
    together = threading.Barrier(3)
    threads = set()

    def work() -> None:
        together.wait(60)
        threads.add(threading.get_ident())

    assert [*in_order([work] * 9, 3)] == [None] * 9
    assert threading.get_ident() in threads


def test_little_is_begun_before_its_turn() -> None:
    begun: list[int] = []
    results = in_order((partial(begun.append, number) for number in range(1000)), 2)
    for _ in range(10):
        next(results)
    assert len(begun) <= 10 + 5
    results.close()  # type: ignore[attr-defined]


def test_what_is_begun_ends_before_the_pool_is_left_and_the_rest_is_dropped() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def hold() -> None:
        begun.set()
        may_end.wait(60)
        ended.append(1)

    with WorkPool(2) as pool:
        held = pool.submit(hold)
        dropped = [pool.submit(partial(ended.append, 2)) for _ in range(5)]
        assert begun.wait(60)
        assert held.is_running
        threading.Timer(0.05, may_end.set).start()
    assert ended == [1]
    assert held.is_done
    assert not any(task.is_done or task.is_running for task in dropped)


def test_an_interruption_of_the_caller_is_raised_at_once() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with WorkPool(1) as pool:
        pool.submit(interrupt)
        last = pool.submit(lambda: 1)
        with pytest.raises(KeyboardInterrupt):
            pool.result(last)
        assert not last.is_done


@pytest.mark.case("D30")
def test_memory_that_runs_out_in_a_thread_is_told() -> None:
    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        [*in_order([fail] * 4, 2)]


def test_a_lock_without_memory_is_memory_that_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("can't allocate lock")

    monkeypatch.setattr(work_pool._thread, "allocate_lock", fails)
    with pytest.raises(MemoryError):
        work_pool.new_lock()


def test_the_end_waits_for_threads_that_have_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    begin: list[Callable[[], None]] = []
    monkeypatch.setattr(work_pool._thread, "start_new_thread", lambda work, _arguments: begin.append(work))
    monkeypatch.setattr(work_pool, "_starting", set())
    with WorkPool(2) as pool:
        pool.submit(int, at_once=True)
    thread = threading.Timer(0.1, begin[0])
    thread.start()
    work_pool._wait_for_threads_to_begin()
    assert not work_pool._starting
    thread.join()

    with WorkPool(2) as pool:
        pool.submit(int, at_once=True)
    monkeypatch.setattr(work_pool, "_SECONDS_TO_BEGIN", 0.1)
    work_pool._wait_for_threads_to_begin()
    assert len(work_pool._starting) == 1, "a thread that never begins does not keep the process"


@pytest.mark.skipif(sys.platform != "linux", reason="processors are chosen as on Linux")
def test_a_process_may_end_as_soon_as_its_work_is_done() -> None:
    """On one processor threads often begin late; glibc overwrites what is freed, so that it is no use to them."""
    program = """
import os
from shared.system.thread_pool import WorkPool
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
with WorkPool(65) as pool:
    for _ in range(64):
        pool.submit(int, at_once=True)
"""
    environment = os.environ | {"MALLOC_PERTURB_": "165"}
    for _ in range(5):
        assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
