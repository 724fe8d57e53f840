"""A command in a process of its own: its exit is reported, and it ends with its parent."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainer.console.signals import StopRequest
from trainer.sweep.child import main, run_child


def run(log: Path, *arguments: str, stop: StopRequest | None = None) -> tuple[int, str]:
    return run_child(arguments, log, stop=stop or StopRequest(), lock=None, watch=lambda: None)


def test_a_failure_is_reported_by_status_and_last_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("what an earlier attempt said\n")
    command = ["vocab", str(tmp_path / "none"), "--vocab-size", "300", "--output", str(tmp_path)]
    status, last = run(tmp_path / "log", *command)
    assert status == 1
    assert last.startswith(str(tmp_path / "none"))
    assert (tmp_path / "log").read_text().startswith("what an earlier attempt said\n")


def alive(process: int) -> bool:
    """Whether it runs; one that ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.case("D30")
def test_where_no_thread_can_be_started_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(sys, "argv", ["child", "1", "vocab"])
    with pytest.raises(SystemExit, match=r"^error: no thread can be started: the memory, or "):
        main()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_it_stops_when_the_sweep_was_killed(tmp_path: Path) -> None:
    """kill -9 of the parent: nothing else would stop the run."""
    child = "import sys; from trainer.sweep.child import _end_with; _end_with(int(sys.argv[1]))"
    parent = (
        "import os, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())], "
        "start_new_session=True); print(child.pid, flush=True); child.wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", parent, child], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    number = int(process.stdout.readline())
    time.sleep(0.5)
    assert alive(number)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 240
    while alive(number):
        assert time.monotonic() < deadline
        time.sleep(0.05)
