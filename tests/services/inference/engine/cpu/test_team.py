"""Threads that run side by side, and where they do."""

import os
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from services.inference.engine.cpu.team import ThreadTeam


@pytest.fixture
def team() -> Iterator[ThreadTeam]:
    team = ThreadTeam(3)
    yield team
    team.close()


def test_each_call_runs_in_a_thread_of_its_own(team: ThreadTeam) -> None:
    together = threading.Barrier(3)
    threads = set()

    def run() -> None:
        together.wait(60)
        threads.add(threading.get_ident())

    calls: list[Any] = [SimpleNamespace(run_only=run)] * 3
    team.run(calls)
    assert len(threads) == 3
    assert threading.get_ident() in threads


@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two processors"
)
def test_the_others_keep_off_the_processor_of_the_caller(team: ThreadTeam) -> None:
    """There they would wait for the caller, who waits for them."""
    allowed = os.sched_getaffinity(0)
    places: list[set[int]] = []
    calls: list[Any] = [SimpleNamespace(run_only=lambda: places.append(os.sched_getaffinity(0)))] * 3
    try:
        for processor in sorted(allowed)[:2]:
            os.sched_setaffinity(0, {processor})
            places.clear()
            team.run(calls)
            assert places.count({processor}) == 1
            assert places.count(allowed - {processor}) == 2
    finally:
        os.sched_setaffinity(0, allowed)
