"""How the engine process is ended by the process that started it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.inference.engine import EngineConfig, ModelProcess
from services.inference.engine.client import child_process as spawn
from services.inference.engine.errors import LoadTimeoutError


@pytest.fixture
def deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelProcess]:
    """A process that does not see that its socket is closed."""
    monkeypatch.setattr(spawn, "_END_SECONDS", 0.01)
    monkeypatch.setattr(spawn, "_KILLED_SECONDS", 240)
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    process = ModelProcess(EngineConfig(tmp_path), command, load_timeout=0.01)
    yield process
    process.close()


def test_one_that_we_kill_is_not_said_to_have_run_out_of_memory(deaf: ModelProcess) -> None:
    assert deaf.end() == "by SIGKILL, since it did not end by itself"


def test_one_that_does_not_load_is_not_waited_for(deaf: ModelProcess) -> None:
    with pytest.raises(LoadTimeoutError, match=r"within 0\.01 seconds \(OWNLM_LOAD_TIMEOUT\)"):
        deaf.wait_ready()


def test_one_that_nothing_ends_is_not_waited_for(deaf: ModelProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as stuck:
        stuck.setattr(spawn, "_KILLED_SECONDS", 0.01)
        stuck.setattr(deaf._popen, "kill", lambda: None)
        with pytest.raises(RuntimeError, match=f"process {deaf.pid} did not end after SIGKILL"):
            deaf.end()
        deaf.close()


def test_one_may_run_on_processors_that_the_one_before_took_from_us(processors: set[int], tmp_path: Path) -> None:
    """`KernelThreadPool` keeps this process off its processor."""
    until_closed = "import socket, sys; end = socket.socket(fileno=int(sys.argv[1]))\nwhile end.recv(4096): pass"
    os.sched_setaffinity(0, {min(processors)})
    try:
        process = ModelProcess(EngineConfig(tmp_path), [sys.executable, "-c", until_closed])
    finally:
        os.sched_setaffinity(0, processors)
    assert os.sched_getaffinity(process.pid) == processors
    os.sched_setaffinity(0, {min(processors)})
    process.close()
    assert os.sched_getaffinity(0) == processors  # ours again once it has ended


@pytest.mark.case("D18")
def test_one_that_cannot_be_started_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(FileNotFoundError):
        ModelProcess(EngineConfig(tmp_path), [str(tmp_path / "no such program")])
    assert len([*Path("/proc/self/fd").iterdir()]) == before
