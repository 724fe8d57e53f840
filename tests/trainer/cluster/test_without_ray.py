"""Without Ray installed."""

import importlib.util
from collections.abc import Callable
from functools import partial

import pytest

from trainer.cluster import ray_cluster
from trainer.errors import UsageError
from trainer.settings.encode import EncodeSettings
from trainer.settings.vocab import VocabSettings


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ray_cluster, "find_spec", lambda name: None if name == "ray" else importlib.util.find_spec(name)
    )
    with pytest.raises(UsageError, match=r"pip install 'ownlm\[ray\]'"):
        ray_cluster.check_ray()


@pytest.mark.parametrize("settings", [EncodeSettings, partial(VocabSettings, vocab_size=300)])
def test_threads_are_for_one_machine(settings: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match="--threads is for one machine"):
        settings(ray="auto", threads=2)
