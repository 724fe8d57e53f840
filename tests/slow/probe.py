"""Ask services for /livez from a process of its own, so that what is measured is their time and not another client's.

    python tests/slow/probe.py PORT PID ...

asks each service in turn, over a new connection each time, until standard input ends. It prints as JSON what each
answer took, in seconds, and how much of that the probe and the thread of the service that waited longest waited for a
processor: on a busy machine nearly all of it. The event loop also waits for threads that have the interpreter lock.
"""

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PAUSE = 0.02


class Probe:
    """What a probe found, once it has ended."""

    answers: Sequence[tuple[float, float]]

    @property
    def slowest(self) -> float:
        """Seconds that an answer took at most, without those in which the machine was busy with something else."""
        return max(seconds - waited for seconds, waited in self.answers)

    def __str__(self) -> str:
        """Say how many there were, and how the slowest fared."""
        seconds = sorted(seconds for seconds, _ in self.answers)
        return (
            f"{len(seconds)} times /livez, in {seconds[len(seconds) // 2] * 1e3:.0f} ms (median) to "
            f"{seconds[-1] * 1e3:.0f} ms, to {self.slowest * 1e3:.0f} ms without waiting for a processor"
        )


@contextmanager
def probing(services: Sequence[tuple[str, int]]) -> Iterator[Probe]:
    """Ask services, each a URL and a process, meanwhile; fails where an answer is not a 200."""
    probe = Probe()
    command = [sys.executable, __file__]
    for url, pid in services:
        command += [url.rsplit(":", 1)[1], str(pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield probe
        finally:
            output, _ = running.communicate()
    assert running.returncode == 0
    probe.answers = json.loads(output)


def waits(process: str) -> dict[str, float]:
    """Seconds that each thread of a process could have run and did not, since it began (schedstat of proc(5))."""
    found = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):  # the thread has ended
            found[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return found


def waited(before: dict[str, float], after: dict[str, float]) -> float:
    """Seconds that the thread that waited longest has waited between two looks."""
    return max(after[task] - before.get(task, 0) for task in after)


def ask(port: str, pid: str) -> tuple[float, float]:
    service, own = waits(pid), waits("self")
    started = time.perf_counter()
    with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    seconds = time.perf_counter() - started
    return seconds, waited(service, waits(pid)) + waited(own, waits("self"))


def main(services: Sequence[str]) -> None:
    answers = []
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        answers += map(ask, services[::2], services[1::2])
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1:])
