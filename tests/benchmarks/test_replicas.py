"""The benchmark of replicas, with two of a tiny model."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import replicas
from tests.services.conftest import model_dir, tokenizer

pytestmark = pytest.mark.extended

__all__ = ["model_dir", "tokenizer"]


@pytest.mark.skipif(
    shutil.which("haproxy") is None, reason="HAProxy is not installed (Debian: apt-get install haproxy)"
)
def test_both_policies_are_measured(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"NUM_REPLICAS": 2, "CONVERSATIONS": 8, "TURNS": 3, "ADDED_TOKENS": 16, "NEW_TOKENS": 4}
    for name, value in sizes.items():
        monkeypatch.setattr(replicas, name, value)
    monkeypatch.setattr(sys, "argv", ["replicas", "--model", str(model_dir), "--rounds", "1"])
    replicas.main()
    *report, rows = capsys.readouterr().out.splitlines()
    assert "| policy | prefix hit rate |" in "\n".join(report)
    measured = json.loads(rows)
    assert [*measured] == ["consistent hashing", "round robin"]
    for [seen] in measured.values():
        hit_rate, requests, first_token, processor = seen
        assert 0 <= hit_rate <= 1
        assert min(requests, first_token, processor) > 0
    assert measured["consistent hashing"][0][0] > 0.3, "all but the first turns begin with one that the cache has"
