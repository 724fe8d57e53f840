"""Who takes part in the benchmark of learning."""

import importlib.util

import pytest

from benchmarks.learning.__main__ import CONTESTANTS, _installed


@pytest.mark.parametrize("absent", ["transformers", "accelerate"])
def test_a_peer_that_is_not_installed_is_left_out(
    absent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None if package == absent else package)
    assert _installed(CONTESTANTS) == ["ours", "ours in half the time", "nanogpt"]
    assert f"since {absent} is not installed" in capsys.readouterr().err


def test_with_all_packages_all_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: package)
    assert _installed(CONTESTANTS) == list(CONTESTANTS)
