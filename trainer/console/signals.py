"""Stopping a job cleanly on Ctrl-C, SIGTERM and SIGHUP, which a terminal that is lost sends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """The signal that asked the job to stop, if any; the job checks it between two steps."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """While active, the first of `STOP_SIGNALS` only sets the request; a second one ends the process at once.

    SIGHUP stays ignored where it was, as by `nohup`. No effect outside the main thread, where no signal arrives.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    numbers = [number for number in STOP_SIGNALS if not (number == signal.SIGHUP and is_ignored)]

    def handle(number: int, _frame: FrameType | None) -> None:
        request.signal_number = number
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)

    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
