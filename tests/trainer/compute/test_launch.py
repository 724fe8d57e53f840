"""What torchrun tells a process."""

import pytest

from trainer.compute.launch import check_command, rank_and_count
from trainer.errors import UsageError


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "8")  # as some schedulers do
    assert rank_and_count() == (0, 1)
    check_command("encode")


def test_only_training_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rank_and_count() == (1, 2)
    check_command("train")
    for command in ("encode", None):
        with pytest.raises(UsageError, match="torchrun works with `train` only"):
            check_command(command)
