"""The lifecycle of a service's resource (a tokenizer or a model): loading, ready, draining."""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, Literal, TypeVar

import structlog
from fastapi import FastAPI

from shared.http.errors import ApiError
from shared.system.errors import describe

_log = structlog.get_logger("ownlm.lifecycle")

T = TypeVar("T")
State = Literal["loading", "ready", "restarting", "draining", "failed"]

_MAX_LOAD_ATTEMPTS = 2  # a load that hangs ends by its own limit, and another one may be tried


async def _no_start(_resource: object) -> None:
    """For a resource that needs no event loop."""


async def _no_drain(_resource: object, _timeout: float) -> None:
    """For a resource whose requests finish by themselves."""


class Lifecycle(Generic[T]):
    """Loads a resource in the background, provides it to requests once ready, and drains it at shutdown.

    Args:
        load: Builds the resource, in a thread of its own, so that /livez answers meanwhile.
        start: Awaited once the resource is loaded, for the part of it that needs the event loop.
        drain: Awaited once after SIGTERM with the seconds left; must end requests that are still running.
        close: Called last, in any case.
        health: Why a loaded resource cannot serve, and whether this is permanent; None where it can.
        load_timeout: Seconds that `load` allows itself; None: no limit. After twice as many of loading or restarting
            without a break the state is `failed`.
    """

    def __init__(
        self,
        load: Callable[[], T],
        *,
        start: Callable[[T], Awaitable[None]] = _no_start,
        drain: Callable[[T, float], Awaitable[None]] = _no_drain,
        close: Callable[[T], None] = lambda _resource: None,
        health: Callable[[T], tuple[str, bool] | None] = lambda _resource: None,
        load_timeout: float | None = None,
    ) -> None:
        self._load = load
        self._start = start
        self._drain = drain
        self._close = close
        self._health = health
        self._longest_unready = math.inf if load_timeout is None else _MAX_LOAD_ATTEMPTS * load_timeout
        self._unready_since: float | None = None  # while it is loading or restarting
        self.loaded: T | None = None
        self._state: State = "loading"
        self.failure: Exception | None = None
        # Whether to load before the port is opened: if other worker processes serve meanwhile.
        self.loads_first = False
        self._is_loaded = asyncio.Event()
        self._finishing: asyncio.Task[None] | None = None

    def status(self) -> tuple[State, str | None]:
        """The state, and the reason where it is `failed` or `restarting`."""
        state, reason = self._reported()
        if state not in ("loading", "restarting"):
            self._unready_since = None
            return state, reason
        now = time.monotonic()
        self._unready_since = self._unready_since or now
        if now - self._unready_since > self._longest_unready:
            self._state = "failed"
            limit = f"limit: {_MAX_LOAD_ATTEMPTS} x OWNLM_LOAD_TIMEOUT"
            fault = f"still {state} after {self._longest_unready:g} s ({limit})"
            self.failure = TimeoutError(f"{fault}: {reason}" if reason else fault)
            return self._reported()
        return state, reason

    def _reported(self) -> tuple[State, str | None]:
        """The state by what `load` and `health` say."""
        if self.failure is not None:
            return "failed", describe(self.failure)
        if self.loaded is not None and (fault := self._health(self.loaded)) is not None:
            reason, is_permanent = fault
            if is_permanent or self._state != "draining":
                return "failed" if is_permanent else "restarting", reason
        return self._state, None

    @property
    def resource(self) -> T:
        """The loaded resource.

        Raises:
            ApiError: 503, while it is loading, restarting or draining, or after it failed.
        """
        state, reason = self.status()
        if state != "ready" or self.loaded is None:
            raise not_ready(state, reason)
        return self.loaded

    @asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        """The app's lifespan: starts loading, and closes the resource at the end."""
        self._start_loading(asyncio.get_running_loop())
        if self.loads_first:
            await self._is_loaded.wait()
        try:
            yield
        finally:
            self._state = "draining"
            if self.loaded is not None:
                self._close(self.loaded)

    async def drain(self, timeout: float) -> None:
        """Refuse new requests and end the running ones, within `timeout` seconds."""
        self._state = "draining" if self._state != "failed" else "failed"
        if self.loaded is not None:
            await self._drain(self.loaded, timeout)

    def _start_loading(self, loop: asyncio.AbstractEventLoop) -> None:
        """Load in a daemon thread: unlike a pool's thread, it does not delay the exit of the process."""

        def finish(resource: T | None, failure: Exception | None) -> None:
            self._finishing = loop.create_task(self._finish_loading(resource, failure))

        def work() -> None:
            resource, failure = None, None
            try:
                resource = self._load()
            except Exception as error:  # becomes the reason of the state `failed`
                failure = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, resource, failure)

        try:
            threading.Thread(target=work, name="load", daemon=True).start()
        except (RuntimeError, MemoryError) as error:  # the system has no room for it
            finish(None, error)

    async def _finish_loading(self, resource: T | None, failure: Exception | None) -> None:
        """Start the loaded resource, unless the service has begun to shut down meanwhile."""
        if resource is not None and self._state == "loading":
            try:
                await self._start(resource)
            except Exception as error:
                self._close(resource)
                resource, failure = None, error
        if self._state != "loading":
            if resource is not None:
                self._close(resource)
            return
        self.loaded, self.failure = resource, failure
        self._state = "ready" if failure is None else "failed"
        self._is_loaded.set()
        if failure is None:
            _log.info("ready")
        else:
            _log.debug("loading failed", exc_info=failure)


def not_ready(state: State, reason: str | None = None) -> ApiError:
    """The 503 with the reason why the service is not ready."""
    messages = {
        "loading": "the service is loading, try again soon",
        "draining": "the server is shutting down",
        "restarting": f"the model is being restarted, try again soon: {reason}",
        "failed": f"the server cannot serve: {reason}",
    }
    headers = {"Retry-After": "1"} if state != "failed" else None
    return ApiError(503, messages.get(state, state), code=state, headers=headers)
