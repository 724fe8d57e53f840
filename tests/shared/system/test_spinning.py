"""Spinning of OpenMP's threads: when it is limited, and that the limit is a team of threads that comes and goes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.system import spinning
from shared.system.spinning import Judge

pytestmark = pytest.mark.extended

ROOT = Path(__file__).resolve().parents[3]
MILLISECOND = 1_000_000

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="libgomp and /proc are Linux's")


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )
    return done.stdout.strip()


def test_a_thread_that_waits_for_a_processor_makes_it_busy_and_a_second_without_makes_it_idle() -> None:
    judge, waited = Judge(), 0
    for milliseconds, is_busy in [
        (0, False),
        (10, False),
        (13, True),
        (0, True),
        (10, True),
        *[(4, True)] * 3,
        (4, False),
    ]:
        waited += milliseconds * MILLISECOND
        judge.hear({"1": waited, "2": 0}, 0.25)
        assert judge.is_busy is is_busy, milliseconds


def test_threads_that_begin_and_end_count_from_when_they_were_seen() -> None:
    judge = Judge()
    judge.hear({"1": 10_000 * MILLISECOND}, 0.25)
    assert not judge.is_busy, "it waited before"
    judge.hear({"2": 10_000 * MILLISECOND}, 0.25)
    assert not judge.is_busy, "another thread"
    judge.hear({}, 0.25)
    assert not judge.is_busy


@linux_only
def test_the_limit_is_a_team_of_more_threads_than_processors_that_ends_with_it() -> None:
    program = """
import os, time, torch
from shared.system.spinning import SpinLimit, _libgomp
torch.set_num_threads(2)
torch.zeros(100_000).add_(1)
count = lambda: len(os.listdir("/proc/self/task"))
limit, before = SpinLimit(_libgomp()), count()
for _ in range(2):
    limit.set()
    while count() <= before + 1:
        time.sleep(0.01)
    time.sleep(0.1)
    print(count() - before - 1 >= len(os.sched_getaffinity(0)), torch.get_num_threads(), limit.is_set)
    limit.clear()
    end = time.monotonic() + 10
    while count() > before and time.monotonic() < end:
        time.sleep(0.01)
    print(count() - before, limit.is_set)
"""
    assert run(program).split() == ["True", "2", "True", "0", "False"] * 2


@linux_only
@pytest.mark.parametrize(
    ("first", "environment", "expected"),
    [
        ("import torch", {}, "True True"),
        ("", {}, "False False"),  # no OpenMP
        ("import torch", {"OMP_WAIT_POLICY": "active"}, "False False"),
        ("import torch", {"GOMP_SPINCOUNT": "1000"}, "False False"),
    ],
)
def test_it_is_watched_where_torch_is_and_the_user_has_not_chosen(
    monkeypatch: pytest.MonkeyPatch, first: str, environment: dict[str, str], expected: str
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    program = f"""
{first}
import threading
from shared.system.spinning import limit_spinning
limit_spinning()
print(limit_spinning(), [t.name for t in threading.enumerate()].count("spinning") == 1)
"""
    assert run(program, **environment) == expected


def test_where_the_kernel_does_not_count_nothing_is_watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, content in {"1": "", "2": "no numbers here", "3": "12 34 5\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(content)
    (tmp_path / "4").mkdir()
    monkeypatch.setattr(spinning, "_THREADS", tmp_path)
    assert spinning.waited_for_processors() == {"3": 34}
    monkeypatch.setattr(spinning, "_THREADS", tmp_path / "nowhere")
    assert spinning.waited_for_processors() == {}
