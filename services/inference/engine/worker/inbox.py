"""Commands to the engine process, as they arrive."""

import select
import socket
import threading
from collections.abc import Callable, Iterator

from services.inference.engine.ipc import Command, decode, receive_encoded

_MAX_HELD_BYTES = 16 * 1024 * 1024  # as they are sent: 5 million tokens of prompts
_LONGEST_WAIT_SECONDS = 60.0  # after which the engine may give back memory, though it has nothing else to do
_CHECK_SECONDS = 0.1  # within which the other side's end is noticed while nothing is read


class PeerClosedError(Exception):
    """The other side has closed: an orderly end, and no fault of the model, whose own errors may be any `OSError`."""


class Inbox:
    """Commands, read by a thread, so that the other side's end is noticed during a long step or while loading.

    It holds `_MAX_HELD_BYTES` and a message at most: requests that are sent and canceled during a long step would fill
    the memory. Further commands stay in the socket, and the other side, which notices, refuses requests in time.

    Args:
        connection: Where commands come from.
        on_end: Called in that thread when the other side has closed, even during a step.
    """

    def __init__(self, connection: socket.socket, on_end: Callable[[], None]) -> None:
        self._connection = connection
        self._on_end = on_end
        self._commands: list[bytes] = []
        self._held = 0  # their bytes
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, name="inbox", daemon=True)
        self._thread.start()

    def take(self, *, wait: bool) -> Iterator[Command]:
        """Return the commands that have come, each decoded when it is used: decoded they take ten times the memory.

        Args:
            wait: Wait for one if there is none, for at most `_LONGEST_WAIT_SECONDS`.

        Raises:
            PeerClosedError: The other side has closed.
        """
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._commands or self._ended, _LONGEST_WAIT_SECONDS)
            if self._ended:
                raise PeerClosedError
            commands, self._commands, self._held = self._commands, [], 0
            self._changed.notify()
        return map(decode, commands)

    def wait_for_end(self) -> None:
        """Read and discard until the other side closes, without calling `on_end`."""
        self._on_end = lambda: None
        self._thread.join()

    def _read(self) -> None:
        while self._wait_for_room() and (command := receive_encoded(self._connection)) is not None:
            with self._changed:
                self._commands.append(command)
                self._held += len(command)
                self._changed.notify()
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._on_end()

    def _wait_for_room(self) -> bool:
        """Wait until more may be read; False if the other side closes meanwhile, which only polling shows."""
        end = select.poll()
        end.register(self._connection, 0)
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._held < _MAX_HELD_BYTES, _CHECK_SECONDS):
                    return True
            if end.poll(0):
                return False
