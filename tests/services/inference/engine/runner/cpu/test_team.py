"""Threads that run side by side, and where they do."""

import os
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from services.inference.engine.runner.cpu import team as team_module
from services.inference.engine.runner.cpu.team import ThreadTeam


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


@pytest.mark.case("D30")
@pytest.mark.parametrize("is_refused", [True, False])
def test_a_thread_that_does_not_start_is_not_waited_for_in_vain(
    is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be refused, or die before its first step without a word, as one that has no memory for it does."""

    def start(work: Any, arguments: tuple[()]) -> None:
        if is_refused:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(team_module, "_START_SECONDS", 0.01)
    monkeypatch.setattr(team_module._thread, "start_new_thread", start)
    with pytest.raises(MemoryError, match=r"thread 2 of the engine does not start: .* \(OWNLM_THREADS\)"):
        ThreadTeam(2)
