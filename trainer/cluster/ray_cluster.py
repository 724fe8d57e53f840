"""Tasks on a Ray cluster.

A task that is lost with its node or its process runs again elsewhere. What a task returns is a function of its
arguments alone, so that the result is the same.
"""

import hashlib
import importlib
import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from shared.system.errors import how_to_install
from trainer.console.signals import StopRequest
from trainer.errors import InterruptedRunError, TrainerError, UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")
Shared = TypeVar("Shared")

_POLL_SECONDS = 0.5
_CONNECT_SECONDS = 10
_RETRIES = 10  # of a task whose node or process was lost
_PACKAGES = ("shared", "trainer")


class RayCluster:
    """A connection to a cluster; see `ray_cluster`."""

    def __init__(self, ray: Any, stop: StopRequest) -> None:
        self._ray = ray
        self._stop = stop

    @property
    def processors(self) -> int:
        """Those of all nodes at present."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def run(
        self, function: Callable[[Shared, Item], Result], common: Shared, items: Sequence[Item]
    ) -> Iterator[tuple[int, Result]]:
        """The results of `function(common, item)` for each item, with its number, in the order in which they are ready.

        Only some tasks wait at a time, so that their results do not pile up in the object store. Where this ends early,
        the rest ends with the connection: Ray aborts this process where a task begins or ends at the moment at which it
        is canceled (ray-project/ray#54527; Ray 2.60 still does).

        Args:
            function: Of a module that all nodes have; an exception that it raises ends everything.
            common: Sent to each process once.
            items: Their order is that in which they begin.

        Raises:
            InterruptedRunError: If a signal came.
            TrainerError: If a task was lost too often, or a node has other code.
        """
        ray = self._ray
        task = ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(_run)
        shared: _Shared[Any] = _Shared(ray.put(common), uuid.uuid4().hex)
        waiting: dict[Any, int] = {}
        following = iter(enumerate(items))
        while True:
            most = 2 * self.processors  # nodes come and go
            while len(waiting) < most and (item := next(following, None)) is not None:
                waiting[task.remote(function, shared, item[1], _code())] = item[0]
            if not waiting:
                return
            done, _ = ray.wait([*waiting], timeout=_POLL_SECONDS)
            if self._stop.signal_number is not None:
                raise InterruptedRunError("stopped", self._stop.signal_number)
            for reference in done:
                number = waiting.pop(reference)
                yield number, self._get(reference)

    def _get(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            raise error.cause from None
        except (errors.ObjectStoreFullError, errors.OutOfDiskError) as error:
            raise TrainerError(
                "the object store of a node is full, and so is the disk that it is spilled to: free some space there, "
                "or start Ray with another --object-spilling-directory"
            ) from error
        except errors.RayError as error:
            raise TrainerError(
                f"a Ray task was lost {_RETRIES + 1} times, or could not be started: {_first_line(error)}"
            ) from error


class _Shared(Generic[Shared]):
    """What all tasks of a run share: a reference, its name in the memory of a process, and the current folder."""

    def __init__(self, reference: Any, name: str) -> None:
        self.references = [reference]  # in a list Ray does not replace it by its value
        self.name = name
        self.folder = Path.cwd()


_values: dict[str, Any] = {}
"""What the last run shared, in a process of the cluster."""


def _run(function: Callable[[Any, Item], Result], shared: _Shared[Any], item: Item, code: str) -> Result:
    if _code() != code:
        raise TrainerError(
            f"the node {socket.gethostname()} has another version of this program: {Path(__file__).parents[2]}"
        )
    if shared.name not in _values:
        import ray

        os.environ.setdefault("RAYON_NUM_THREADS", "1")  # as Ray does with OMP_NUM_THREADS: a task has one processor
        if shared.folder.is_dir():  # for names that are relative to it
            os.chdir(shared.folder)
        _values.clear()
        _values[shared.name] = ray.get(shared.references[0])
    return function(_values[shared.name], item)


@cache
def _code() -> str:
    """A hash of this program, which all nodes must share for the result to be the same."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        [folder] = importlib.import_module(package).__path__
        for path in sorted(Path(folder).rglob("*.py")):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _check_answers(address: str) -> None:
    """Raise an OSError at once where nothing answers, which Ray tries for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()


@contextmanager
def _handler_of_sigterm() -> Iterator[None]:
    """Keep the handler, which Ray replaces by one that ends the process at once."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def check_ray() -> None:
    """Raise a UsageError if Ray is not installed."""
    if find_spec("ray") is None:
        raise UsageError(f"--ray needs Ray, which is not installed: {how_to_install('ray')}")


@contextmanager
def ray_cluster(address: str, stop: StopRequest) -> Iterator[RayCluster]:
    """Connect to a cluster.

    Args:
        address: `auto` for the one that this machine belongs to, `HOST:PORT`, or `local` for one of this machine alone.
        stop: Looked at between two results.

    Raises:
        UsageError: Ray is not installed.
        TrainerError: There is no cluster.
    """
    check_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do, as its warning says
    import ray

    was_connected = ray.is_initialized()
    if not was_connected:
        try:
            _check_answers(address)
            with _handler_of_sigterm():
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # of any class, Exception itself included
            if address == "local":
                raise TrainerError(f"Ray does not start on this machine: {_first_line(error)}") from error
            raise TrainerError(
                f"no Ray cluster answers at {address!r} ({_first_line(error)}); start one with `ray start --head`, or "
                "take --ray local; one that asks for a token needs RAY_AUTH_MODE=token"
            ) from error
    try:
        yield RayCluster(ray, stop)
    finally:
        if not was_connected:
            ray.shutdown()
