"""`BlockPool` and its memory, which a thread may take while the pool looks at it. The rest is tried with the core."""

import time

import pytest

from services.inference.engine.scheduling.block_pool import NO_PARENT, BlockPool
from tests.services.inference.engine.fake_runner import FakeMemory


class TakenMeanwhile(FakeMemory):
    """Its thread takes blocks just before the pool gives some back, which it then refuses."""

    def give_back(self, count: int) -> None:
        self.num_ready += 3


def pool_with_a_cached_block(memory: FakeMemory) -> BlockPool:
    pool = BlockPool(40, memory)
    blocks = [pool.allocate() for _ in range(20)]
    pool.register(blocks[-1], NO_PARENT)
    pool.release(blocks)
    return pool


def let_windows_pass(pool: BlockPool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    for later in (400, 800, 1200):
        monkeypatch.setattr(time, "monotonic", lambda later=later: now + later)
        pool.give_back()


def test_no_block_is_lost_that_was_taken_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = TakenMeanwhile(num_ready=20, limit=40)
    pool = pool_with_a_cached_block(memory)
    let_windows_pass(pool, monkeypatch)
    pool.grow_ahead()
    assert pool.num_held == 0
    assert pool.num_available == pool.num_ready == memory.num_ready > 20


def test_the_prefix_cache_stays_while_memory_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = FakeMemory(num_ready=20, limit=40, wanted=22)
    pool = pool_with_a_cached_block(memory)
    let_windows_pass(pool, monkeypatch)
    assert pool.lookup(NO_PARENT) == 19
    memory.grow(2)
    let_windows_pass(pool, monkeypatch)
    assert pool.lookup(NO_PARENT) is None
    assert memory.num_ready < 20


def test_the_prefix_cache_stays_while_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a busy service would lose most of it every five minutes."""
    memory = FakeMemory(num_ready=20, limit=20)
    pool = pool_with_a_cached_block(memory)
    now = time.monotonic()
    for later in range(400, 4000, 400):
        pool.add_reference(19)
        pool.release([19])
        monkeypatch.setattr(time, "monotonic", lambda later=later: now + later)
        pool.give_back()
    assert pool.lookup(NO_PARENT) == 19
