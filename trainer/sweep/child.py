"""A command of the trainer in a process of its own, so that its crash or its memory is not the sweep's."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from shared.system.errors import describe
from trainer.console.signals import StopRequest

_POLL_SECONDS = 0.5


def run_child(
    arguments: Sequence[str], log: Path, *, stop: StopRequest, lock: int | None, watch: Callable[[], None]
) -> tuple[int, str]:
    """Run a command to its end; a stop request is forwarded to it.

    Args:
        arguments: What follows `python -m trainer`.
        log: Its output is appended there.
        stop: Noted by the caller's signal handlers.
        lock: A file that the process holds open as long as it lives.
        watch: Called twice a second.

    Returns:
        Its exit status, -N where signal N killed it, and the last line of its output.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "trainer.sweep.child", str(os.getpid()), *arguments]
    with log.open("a", encoding="utf-8") as output:
        output.flush()
        begin = log.stat().st_size
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C reaches it once, through us
            pass_fds=() if lock is None else (lock,),
        )
        forwarded = False
        while process.poll() is None:
            if stop and not forwarded:
                process.send_signal(stop.signal_number or signal.SIGTERM)
                forwarded = True
            watch()
            try:
                process.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    return process.returncode, _last_line(log, begin)


def _last_line(log: Path, begin: int) -> str:
    """The last line after an offset, without time and `error:`."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    if not lines:
        return "no output"
    last = lines[-1].strip()
    time_of_day, _, rest = last.partition(" ")
    return (rest if time_of_day.count(":") == 2 else last).removeprefix("error: ")


def _end_with(parent: int) -> None:
    """Stop with a checkpoint when the sweep is gone, even by kill -9."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the command line that follows the parent's process id."""
    parent = int(sys.argv.pop(1))
    try:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    except RuntimeError as error:  # training could not start its threads either
        sys.exit(f"error: {describe(error)}")
    from trainer.cli import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
