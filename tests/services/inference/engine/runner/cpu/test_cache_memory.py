"""Memory of the KV cache: when it is the process' own, and what is refused."""

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from services.inference.engine.runner.cpu import cache_memory
from services.inference.engine.runner.cpu.cache_memory import CacheMemory

BLOCK = 1 << 20
GIB = 1 << 30


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the system says that it has; a test may change it."""
    memory = {"free": 100 * GIB}
    monkeypatch.setattr(cache_memory, "free_memory", lambda: memory["free"])
    monkeypatch.setattr(cache_memory, "total_memory", lambda: 8 * GIB)
    monkeypatch.setattr(cache_memory, "_AHEAD_BYTES", 4 * BLOCK)
    monkeypatch.setattr(cache_memory, "_CHECKED_BYTES", 2 * BLOCK)
    return memory


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


def test_memory_is_in_the_process_before_it_is_used_and_no_more_of_it() -> None:
    """Else the system hands it over in the middle of steps, or ends the process there for want of it.

    In a process of its own: in this one the allocator may have as much left from the tests before.
    """
    program = """
import time
import psutil
from services.inference.engine.runner.cpu.cache_memory import CacheMemory

resident = lambda: psutil.Process().memory_info().rss
before = resident()
memory = CacheMemory(400, 1 << 20, num_first=60, num_slots=8)
print(resident() - before)
memory.reserve(100)
while memory.is_growing:
    time.sleep(0.001)
print(resident() - before, memory.num_ready)
memory.give_back(70)
print(resident() - before, memory.num_ready, memory.num_kept(0), memory.num_kept(50))
memory.reserve(80, wait=True)
print(memory.num_ready >= 80, memory.array[: 80 << 20].any())
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    first, grown, ready, left, ready_then, kept, kept_of_50 = map(int, printed.split()[:7])
    slack = 8 << 20
    assert abs(first - 60 * BLOCK) < slack
    assert ready == 132  # 32 MiB ahead
    assert abs(grown - 132 * BLOCK) < slack
    if sys.platform == "linux":
        assert abs(left - 70 * BLOCK) < slack
        assert ready_then == 70
    assert [kept, kept_of_50] == [60, 82]
    assert printed.split()[7:] == ["True", "False"]


def test_blocks_are_taken_ahead_and_up_to_all(free: dict[str, int]) -> None:
    memory = CacheMemory(20, BLOCK, num_first=2, num_slots=3)
    assert (memory.num_ready, memory.is_growing) == (2, False)
    memory.reserve(0)
    assert not memory.is_growing  # as much as half of what is taken ahead is there
    memory.reserve(1)
    assert until(lambda: memory.num_ready == 5)  # 4 MiB ahead
    memory.reserve(20)
    assert until(lambda: memory.num_ready == 20)
    assert until(lambda: not memory.is_growing)
    assert CacheMemory(20, BLOCK, num_first=20, num_slots=3).num_ready == 20


def test_every_sequence_that_may_run_has_a_block_ahead(free: dict[str, int]) -> None:
    memory = CacheMemory(40, BLOCK, num_first=2, num_slots=16)
    memory.reserve(2)
    assert until(lambda: memory.num_ready == 18)


def test_who_waits_has_what_it_needs(free: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the other thread never gets a processor."""
    monkeypatch.setattr(cache_memory._thread, "start_new_thread", lambda *_: None)
    memory = CacheMemory(20, BLOCK, num_first=2, num_slots=3)
    memory.reserve(7, wait=True)
    assert memory.num_ready == 7
    assert memory.is_growing


def test_where_little_is_left_the_cache_stops_growing_and_says_so_once(free: dict[str, int]) -> None:
    """It leaves as much as a tenth of all memory, or 256 MiB, to others."""
    memory = CacheMemory(20, BLOCK, num_first=2, num_slots=3)
    free["free"] = (256 << 20) + BLOCK  # and two blocks are taken at a time
    with capture_logs() as log:
        memory.reserve(7, wait=True)
        assert (memory.num_ready, memory.is_growing) == (2, False)
        for _ in range(3):
            memory.reserve(8, wait=True)
            memory._retry_at = min(memory._retry_at, 1e-9)  # as a second later
        assert len(log) == 1
    assert log[0]["event"] == "KV cache growth paused: low memory"
    assert "2 MiB are in use and 257 MiB free" in log[0]["reason"]
    free["free"] = GIB
    memory.reserve(7, wait=True)
    assert memory.num_ready >= 7


def test_a_shortage_is_asked_about_once_a_second(free: dict[str, int]) -> None:
    memory = CacheMemory(20, BLOCK, num_first=2, num_slots=3)
    free["free"] = 0
    memory.reserve(7, wait=True)
    free["free"] = GIB
    memory.reserve(7, wait=True)
    assert (memory.num_ready, memory.is_growing) == (2, False)
    memory._retry_at = 1e-9
    memory.reserve(7, wait=True)
    assert memory.num_ready >= 7


def test_first_blocks_beyond_free_memory_are_refused(free: dict[str, int]) -> None:
    free["free"] = 7 * BLOCK
    CacheMemory(100, BLOCK, num_first=7, num_slots=3)
    with pytest.raises(MemoryError, match="begins with 8 MiB, and 7 MiB are free"):
        CacheMemory(100, BLOCK, num_first=8, num_slots=3)


def test_where_no_thread_starts_memory_is_taken_by_who_waits(
    free: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D30: the limit on processes is reached."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(cache_memory._thread, "start_new_thread", refuse)
    memory = CacheMemory(20, BLOCK, num_first=2, num_slots=3)
    memory.reserve(5, wait=True)
    assert (memory.num_ready, memory.is_growing) == (5, False)
