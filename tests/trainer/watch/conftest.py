"""The server of `watch` as a process of its own."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Serve = Callable[..., str]


@pytest.fixture
def watch() -> Iterator[Serve]:
    """Start `watch` on a free port; gives its address. At the end Ctrl-C ends it, in order."""
    processes = []

    def start(*runs: Path, options: tuple[str, ...] = ("--port", "0")) -> str:
        command = [sys.executable, "-m", "trainer", "watch", *map(str, runs), *options]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stderr is not None
        found = re.search(r"http://[\w.:\[\]]+\d", process.stderr.readline())
        assert found
        return found[0]

    yield start
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        assert "Traceback" not in process.communicate(timeout=60)[1]
        assert process.returncode == 130
