"""Signals that ask a job to stop."""

import os
import signal
from collections.abc import Iterator

import pytest

from trainer.console.signals import STOP_SIGNALS, stop_on_signals


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Whatever a test leaves behind, and whether the tests run with `nohup`."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_signal_only_asks(number: signal.Signals) -> None:
    before = {each: signal.getsignal(each) for each in STOP_SIGNALS}
    with stop_on_signals() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop.signal_number == number
        assert {signal.getsignal(each) for each in STOP_SIGNALS} == {signal.SIG_DFL}, "a second one ends the process"
    assert {each: signal.getsignal(each) for each in STOP_SIGNALS} == before


def test_nohup_keeps_a_job_going() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal_number == signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
