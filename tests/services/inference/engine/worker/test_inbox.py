"""Commands that arrive faster than they are taken."""

import contextlib
import socket
import threading

import pytest

from services.inference.engine.ipc import Submit, encode
from services.inference.engine.worker import inbox
from services.inference.engine.worker.inbox import Inbox, PeerClosedError
from tests.services.inference.engine.core_driver import request


class FullInbox:
    """An inbox that holds as much as it may, and a thread that is about to send more."""

    SIZE, COMMANDS = 10_000, 500

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.ours, self.theirs = socket.socketpair()
        self.inbox = Inbox(self.theirs, self.ended.set)
        self._sender = threading.Thread(target=self._send)
        self._sender.start()
        with self.inbox._changed:
            assert self.inbox._changed.wait_for(lambda: self.inbox._held >= self.SIZE, 240)
        self._sender.join(0.2)
        assert self._sender.is_alive()

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # the end
            for request_id in range(self.COMMANDS):
                self.ours.sendall(encode(Submit(request_id, [request(1000)])))

    def close(self) -> None:
        self.ours.shutdown(socket.SHUT_RDWR)
        self._sender.join()
        assert self.ended.wait(240)
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> FullInbox:
    monkeypatch.setattr(inbox, "_MAX_HELD_BYTES", FullInbox.SIZE)
    return FullInbox()


def test_what_the_inbox_cannot_hold_waits_in_the_socket(full: FullInbox) -> None:
    request_ids: list[int] = []
    while len(request_ids) < full.COMMANDS:
        commands = list(full.inbox.take(wait=True))
        assert sum(len(encode(command)) for command in commands) < full.SIZE + 4000
        request_ids += [command.request_id for command in commands]
    assert request_ids == list(range(full.COMMANDS))
    full.close()


def test_a_full_inbox_sees_the_end(full: FullInbox) -> None:
    full.close()
    with pytest.raises(PeerClosedError):
        full.inbox.take(wait=True)
