"""Without Ray installed."""

import importlib.util

import pytest

from trainer.cluster import ray_cluster
from trainer.errors import UsageError


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ray_cluster, "find_spec", lambda name: None if name == "ray" else importlib.util.find_spec(name)
    )
    with pytest.raises(UsageError, match=r"pip install 'ownlm\[ray\]'"):
        ray_cluster.check_ray()
