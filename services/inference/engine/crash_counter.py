"""When a process that crashed is restarted, and when no more: after several crashes within a short time of service."""

from collections import deque

_MAX_CRASHES = 3
_WINDOW_SECONDS = 60.0
_RESTART_SECONDS = 0.25  # doubled by each crash within the window

TOO_MANY = f"the {_MAX_CRASHES}rd time within a minute of service"


class CrashCounter:
    """Counts crashes of processes that replace each other.

    Only time of service counts: loading alone may take longer than the window.
    """

    def __init__(self) -> None:
        self._served_seconds = 0.0  # by all processes so far
        self._at: deque[float] = deque()  # the newest crashes, by `_served_seconds`

    @property
    def too_many(self) -> bool:
        """Whether the process should not be restarted."""
        return len(self._at) >= _MAX_CRASHES

    @property
    def restart_delay(self) -> float:
        """Seconds to wait before a restart: twice as many after each crash within the window."""
        return _RESTART_SECONDS * (1 << len(self._at))

    def add(self, served_seconds: float) -> None:
        """Count the crash of a process that had the model loaded for so many seconds."""
        self._served_seconds += served_seconds
        self._at.append(self._served_seconds)
        while self._served_seconds - self._at[0] > _WINDOW_SECONDS:
            self._at.popleft()
