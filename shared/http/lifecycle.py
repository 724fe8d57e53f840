"""From loading to ready to draining: what a service holds, and whether it may be used now."""

import asyncio
import threading
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


async def _nothing_to_start(_resource: object) -> None:
    """What was loaded has no part on the event loop."""


async def _nothing_to_drain(_resource: object, _timeout: float) -> None:
    """Requests that need no help simply finish."""


class Lifecycle(Generic[T]):
    """Loads what a service needs in the background, hands it to requests once ready, and drains it at the end.

    Args:
        load: Builds the resource; runs in its own thread, so that /livez answers meanwhile.
        start: Awaited on the event loop once the resource is there, for the part of it that lives on the loop.
        drain: Awaited once after SIGTERM with the seconds that are left; must end what still runs.
        close: Called last, whatever came before.
        health: Why a resource that was loaded cannot serve, and whether that is for good; None where it can.
    """

    def __init__(
        self,
        load: Callable[[], T],
        *,
        start: Callable[[T], Awaitable[None]] = _nothing_to_start,
        drain: Callable[[T, float], Awaitable[None]] = _nothing_to_drain,
        close: Callable[[T], None] = lambda _resource: None,
        health: Callable[[T], tuple[str, bool] | None] = lambda _resource: None,
    ) -> None:
        self._load = load
        self._start = start
        self._drain = drain
        self._close = close
        self._health = health
        self.loaded: T | None = None
        self._state: State = "loading"
        self.failure: Exception | None = None
        # Whether the port is to open only then: where other processes serve meanwhile.
        self.loads_first = False
        self._is_loaded = asyncio.Event()
        self._taking_over: asyncio.Task[None] | None = None

    def status(self) -> tuple[State, str | None]:
        """The state, and the reason where it is `failed` or `restarting`."""
        if self.failure is not None:
            return "failed", describe(self.failure)
        if self.loaded is not None and (fault := self._health(self.loaded)) is not None:
            reason, final = fault
            if final or self._state != "draining":
                return "failed" if final else "restarting", reason
        return self._state, None

    @property
    def resource(self) -> T:
        """What was loaded.

        Raises:
            ApiError: 503, when it may not be used: still loading, draining, or failed.
        """
        state, reason = self.status()
        if state != "ready" or self.loaded is None:
            raise not_ready(state, reason)
        return self.loaded

    @asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        """The app's lifespan: starts to load, and closes at the end."""
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
        """Refuse what is new and end what runs, within `timeout` seconds."""
        self._state = "draining" if self._state != "failed" else "failed"
        if self.loaded is not None:
            await self._drain(self.loaded, timeout)

    def _start_loading(self, loop: asyncio.AbstractEventLoop) -> None:
        """Load in a daemon thread: unlike a pool's worker, it does not hold up a process that is told to end."""

        def take_over(resource: T | None, failure: Exception | None) -> None:
            self._taking_over = loop.create_task(self._take_over(resource, failure))

        def work() -> None:
            resource, failure = None, None
            try:
                resource = self._load()
            except Exception as error:  # whatever went wrong is the state to report
                failure = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(take_over, resource, failure)

        try:
            threading.Thread(target=work, name="load", daemon=True).start()
        except (RuntimeError, MemoryError) as error:  # the system has no room for it
            take_over(None, error)

    async def _take_over(self, resource: T | None, failure: Exception | None) -> None:
        """Use what was loaded, unless the service has begun to end meanwhile."""
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
        _log.info("ready") if failure is None else _log.debug("loading failed", exc_info=failure)


def not_ready(state: State, reason: str | None = None) -> ApiError:
    """The 503 that says why a service cannot be used now."""
    messages = {
        "loading": "the model is still loading, try again soon",
        "draining": "the server is shutting down",
        "restarting": f"the model is being restarted, try again soon: {reason}",
        "failed": f"the server cannot serve: {reason}",
    }
    headers = {"Retry-After": "1"} if state != "failed" else None
    return ApiError(503, messages.get(state, state), code=state, headers=headers)
