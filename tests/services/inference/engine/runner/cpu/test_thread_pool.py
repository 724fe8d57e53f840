"""Threads that run side by side, and where they do."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.inference.engine.runner.cpu import thread_pool as thread_pool_module
from services.inference.engine.runner.cpu.thread_pool import KernelThreadPool


@pytest.fixture
def thread_pool() -> Iterator[KernelThreadPool]:
    thread_pool = KernelThreadPool(3)
    yield thread_pool
    thread_pool.close()


def test_each_call_runs_in_a_thread_of_its_own(thread_pool: KernelThreadPool) -> None:
    together = threading.Barrier(3)
    threads = set()

    def run() -> None:
        together.wait(60)
        threads.add(threading.get_ident())

    calls: list[Any] = [SimpleNamespace(run_only=run)] * 3
    thread_pool.run(calls)
    assert len(threads) == 3
    assert threading.get_ident() in threads


def test_the_caller_runs_what_no_other_thread_has_begun(
    thread_pool: KernelThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have no processor: here, they wait for something else than what wakes them."""
    for worker in thread_pool._workers:
        lock = threading.Lock()
        lock.acquire()
        monkeypatch.setattr(worker, "_wanted", lock)
    for _ in range(2):
        threads: list[int] = []
        calls: list[Any] = [SimpleNamespace(run_only=lambda seen=threads: seen.append(threading.get_ident()))] * 3
        thread_pool.run(calls)
        assert threads == [threading.get_ident()] * 3
    monkeypatch.undo()
    test_each_call_runs_in_a_thread_of_its_own(thread_pool)


def test_the_others_keep_off_the_processor_of_the_caller(processors: set[int], thread_pool: KernelThreadPool) -> None:
    """There they would wait for the caller, who waits for them."""
    together = threading.Barrier(3)
    places: list[set[int]] = []

    def run() -> None:
        together.wait(60)
        places.append(os.sched_getaffinity(0))

    calls: list[Any] = [SimpleNamespace(run_only=run)] * 3
    try:
        for processor in sorted(processors)[:2]:
            os.sched_setaffinity(0, {processor})
            places.clear()
            thread_pool.run(calls)
            assert places.count({processor}) == 1
            assert places.count(processors - {processor}) == 2
    finally:
        os.sched_setaffinity(0, processors)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_another_process_keeps_off_the_processor_of_the_caller(processors: set[int], num_threads: int) -> None:
    """All of its threads do, where the caller was before, until it has ended."""
    thread_pool = KernelThreadPool(num_threads)
    calls: list[Any] = [SimpleNamespace(run_only=lambda: None)] * num_threads
    code = "import threading; threading.Thread(target=input, daemon=True).start(); print(flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        threads = [int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()]
        assert len(threads) == 2
        try:
            for processor in sorted(processors)[:2]:
                os.sched_setaffinity(0, {processor})
                thread_pool.run(calls)
                thread_pool.exclude_process(process.pid)
                thread_pool.run(calls)
                assert [os.sched_getaffinity(thread) for thread in threads] == [processors - {processor}] * 2
            process.kill()
            process.wait()
            os.sched_setaffinity(0, {min(processors)})
            thread_pool.run(calls)
        finally:
            os.sched_setaffinity(0, processors)
            thread_pool.close()


@pytest.mark.case("D30")
@pytest.mark.parametrize("is_refused", [True, False])
def test_a_thread_that_does_not_start_is_not_waited_for_in_vain(
    is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be refused, or die before its first step without a word, as one that has no memory for it does."""

    def start(work: Any, arguments: tuple[()]) -> None:
        if is_refused:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(thread_pool_module, "_START_SECONDS", 0.01)
    monkeypatch.setattr(thread_pool_module._thread, "start_new_thread", start)
    with pytest.raises(MemoryError, match=r"thread 2 of the engine did not start: .* lower OWNLM_THREADS"):
        KernelThreadPool(2)
