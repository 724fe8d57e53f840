"""Ask services for /livez from a process of its own, so that what is measured is their time and not another client's.

    python tests/slow/probe.py URL...

asks each URL in turn, over a new connection each time, until standard input ends, and prints the seconds of all answers
as JSON, and by how many seconds it was woken too late: what the machine adds on its own.
"""

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

PAUSE = 0.02


@dataclass
class Probe:
    """What a probe found, in seconds, once it has ended."""

    answers: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        """Say how many there were, and how the slowest fared."""
        median, most = sorted(self.answers)[len(self.answers) // 2], max(self.answers)
        return (
            f"{len(self.answers)} times /livez, in {median * 1e3:.1f} ms (median) to {most * 1e3:.0f} ms, "
            f"by a process that is woken up to {max(self.late) * 1e3:.0f} ms late"
        )


@contextmanager
def probing(urls: Sequence[str]) -> Iterator[Probe]:
    """Ask meanwhile; fails where an answer is not a 200."""
    probe = Probe()
    command = [sys.executable, __file__, *urls]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield probe
        finally:
            output, _ = running.communicate()
    assert running.returncode == 0
    probe.answers, probe.late = json.loads(output)


def ask(port: int) -> float:
    started = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    return time.perf_counter() - started


def main(urls: Sequence[str]) -> None:
    ports = [int(url.rsplit(":", 1)[1]) for url in urls]
    answers, late = [], []
    turn = time.perf_counter()
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        late.append(time.perf_counter() - turn - PAUSE)
        answers += map(ask, ports)
        turn = time.perf_counter()
    print(json.dumps((answers, late)))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(sys.argv[1:])
