import errno
import fcntl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shared.system.locks import is_locked_by_process, lock

IN_ANOTHER = """
import sys
from shared.system.locks import lock
with open(sys.argv[1], "w") as file:
    print(lock(file.fileno(), holder=sys.argv[2]))
"""
ASK_FOR_ONE = """
import sys
from pathlib import Path
from shared.system.locks import is_locked_by_process
print(is_locked_by_process(Path(sys.argv[1])))
"""


def locked_in_another_process(path: Path, holder: str) -> str:
    command = [sys.executable, "-c", IN_ANOTHER, str(path), holder]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_lock_of_a_file_is_had_by_one_who_opened_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as one, path.open("w") as other:
        assert lock(one.fileno(), holder="file")
        assert not lock(other.fileno(), holder="file")
        one.close()
        assert lock(other.fileno(), holder="file")


def test_a_child_that_inherits_a_file_has_its_lock_too(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as ours, path.open("w") as others:
        assert lock(ours.fileno(), holder="file")
        child = subprocess.Popen(["cat"], pass_fds=[ours.fileno()], stdin=subprocess.PIPE)
        ours.close()
        assert not lock(others.fileno(), holder="file")
        child.communicate()
        assert lock(others.fileno(), holder="file")


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as one, path.open("w") as other:
        assert lock(one.fileno(), holder="file")
        taken = threading.Event()
        waiting = threading.Thread(target=lambda: lock(other.fileno(), holder="file", wait=True) and taken.set())
        waiting.start()
        assert not taken.wait(0.1)
        fcntl.flock(one, fcntl.LOCK_UN)
        assert taken.wait(60)
        waiting.join()


def test_a_lock_of_a_process_keeps_other_processes_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as one, path.open("w") as other:
        assert lock(one.fileno(), holder="process")
        assert lock(other.fileno(), holder="process")
        assert locked_in_another_process(path, "process") == "False\n"
    assert locked_in_another_process(path, "process") == "True\n"


def test_to_ask_for_a_lock_changes_none(tmp_path: Path) -> None:
    """Neither another process's, nor our own, which ends when any descriptor of the file is closed."""
    path = tmp_path / "lock"
    assert is_locked_by_process(path) is False
    with path.open("w") as file:
        assert lock(file.fileno(), holder="process")
        assert is_locked_by_process(path) is False, "by no other process"
        assert locked_in_another_process(path, "process") == "False\n"
        command = [sys.executable, "-c", ASK_FOR_ONE, str(path)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
        assert locked_in_another_process(path, "process") == "False\n"


@pytest.mark.parametrize("holder", ["file", "process"])
def test_no_process_is_kept_out_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    monkeypatch.setattr(fcntl, "lockf", unknown)
    with (tmp_path / "lock").open("w") as file:
        assert lock(file.fileno(), holder=holder)  # type: ignore[arg-type]
        monkeypatch.setattr(fcntl, "fcntl", unknown)
        assert is_locked_by_process(Path(__file__)) is None
        monkeypatch.setitem(sys.modules, "fcntl", None)
        assert is_locked_by_process(Path(__file__)) is None
        assert lock(file.fileno(), holder=holder)  # type: ignore[arg-type]
