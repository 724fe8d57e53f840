"""How long threads of OpenMP spin for each other: long on an idle machine, hardly beside processes that compute.

torch for Linux computes with GCC's OpenMP. A thread of it that waits for another spins for 3 to 15 milliseconds before
it sleeps. Where others want the processors too, it spins away the time in which the thread that it waits for would run:
beside two processes on two processors, training was 12 times slower than its fair share. Sleeping at once
(OMP_WAIT_POLICY=passive) mends that, and takes 16 % of the speed of an idle machine; these variables are read once.

But a process with more threads of OpenMP than processors spins a thousandth as long, from one wait to the next. So
while the kernel reports that threads of this process wait for processors, a second team of them exists, and sleeps.

Source: `do_spin` in libgomp/config/linux/wait.h and `gomp_managed_threads` in libgomp/team.c of GCC.
"""

import ctypes
import os
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_INTERVAL = 0.25
_BUSY, _IDLE = 0.05, 0.02
"""The share of its time that a thread waits for a processor, above which spinning is limited, and below which it may be
as long as ever."""
_IDLE_INTERVALS = 4  # in a row, before that

_THREADS = Path("/proc/self/task")


@cache
def limit_spinning() -> bool:
    """Watch this process from now on, and limit spinning while other processes compute.

    Call it once torch is imported. It changes no result: as many threads share the work as before.

    Returns:
        Whether it does: not without GCC's OpenMP, not where the kernel does not count, and not where the user has
        chosen by OMP_WAIT_POLICY or GOMP_SPINCOUNT.
    """
    library = _libgomp()
    if library is None or not waited_for_processors() or any(name in os.environ for name in _VARIABLES):
        return False
    threading.Thread(target=_watch, args=[SpinLimit(library)], name="spinning", daemon=True).start()
    return True


class SpinLimit:
    """The second team of threads.

    Args:
        library: libgomp.
    """

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        self._holder: threading.Thread | None = None
        self._end = threading.Event()

    @property
    def is_set(self) -> bool:
        """Whether it exists."""
        return self._holder is not None

    def set(self) -> None:
        """Start it; without memory or processes for it, it is tried again at the next call."""
        self._end.clear()
        holder = threading.Thread(target=self._hold, name="spin limit", daemon=True)
        with suppress(RuntimeError):
            holder.start()
            self._holder = holder

    def clear(self) -> None:
        """End it."""
        self._end.set()
        if self._holder is not None:
            self._holder.join()
        self._holder = None

    def _hold(self) -> None:
        # A team belongs to the thread that has started it, and ends with that thread.
        no_work = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p)
        self._library.GOMP_parallel(no_work, None, len(os.sched_getaffinity(0)) + 1, 0)
        self._end.wait()


def waited_for_processors() -> dict[str, int]:
    """For each thread of this process, nanoseconds in which it could have run, and had no processor."""
    waited = {}
    for thread in _THREADS.iterdir() if _THREADS.is_dir() else ():
        with suppress(OSError, IndexError, ValueError):  # it has ended, or the kernel does not count
            waited[thread.name] = int((thread / "schedstat").read_text(encoding="ascii").split()[1])
    return waited


class Judge:
    """Decides from the time that threads have waited.

    Attributes:
        is_busy: Whether other processes take the processors.
    """

    def __init__(self) -> None:
        self.is_busy = False
        self._idle_intervals = 0
        self._before: dict[str, int] = {}

    def hear(self, waited: dict[str, int], seconds: float) -> None:
        """Take what `waited_for_processors` says, and the seconds since it said so before."""
        times = [waited[thread] - self._before[thread] for thread in waited.keys() & self._before.keys()]
        share = max(times, default=0) / 1e9 / seconds
        self._before = waited
        self._idle_intervals = self._idle_intervals + 1 if share < _IDLE else 0
        if share > _BUSY:
            self.is_busy = True
        elif self._idle_intervals >= _IDLE_INTERVALS:
            self.is_busy = False


def _watch(limit: SpinLimit) -> None:
    judge, before = Judge(), time.monotonic()
    while True:
        time.sleep(_INTERVAL)
        now = time.monotonic()
        judge.hear(waited_for_processors(), now - before)
        before = now
        if judge.is_busy and not limit.is_set:
            limit.set()
        elif limit.is_set and not judge.is_busy:
            limit.clear()


def _libgomp() -> ctypes.CDLL | None:
    """The one that this process has loaded."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    paths = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    found = [path for path in sorted(paths) if Path(path).name.startswith("libgomp")]
    with suppress(OSError):
        return ctypes.CDLL(found[0]) if len(found) == 1 else None
    return None
