"""Without Ray installed."""

import importlib.util
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest

from trainer.cluster import ray_cluster
from trainer.console.signals import stop_on_signals
from trainer.errors import UsageError
from trainer.settings.clean import CleanSettings
from trainer.settings.encode import EncodeSettings
from trainer.settings.vocab import VocabSettings


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ray_cluster, "find_spec", lambda name: None if name == "ray" else importlib.util.find_spec(name)
    )
    with pytest.raises(UsageError, match=r"pip install .* -e '\.\[ray\]' in the checkout"):
        ray_cluster.check_ray()


@pytest.mark.parametrize("settings", [EncodeSettings, partial(VocabSettings, vocab_size=300)])
def test_threads_are_for_one_machine(settings: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match="--threads is for one machine"):
        settings(ray="auto", threads=2)


def test_workers_are_for_one_machine() -> None:
    with pytest.raises(UsageError, match="--workers is for one machine"):
        CleanSettings(ray="auto", workers=2)


def test_the_handler_of_sigterm_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own ends the process without a word about what is kept."""

    def init(*_: object, **__: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    ray = SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_cluster, "check_ray", lambda: None)
    with stop_on_signals() as stop, ray_cluster.ray_cluster("auto", stop):
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal_number == signal.SIGTERM
