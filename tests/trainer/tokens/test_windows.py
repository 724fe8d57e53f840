import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainer.errors import TrainerError
from trainer.tokens.token_file import Manifest, TokenFile
from trainer.tokens.windows import ShuffledWindows


def token_file(path: Path, count: int, dtype: str = "uint16") -> TokenFile:
    """The tokens 0, 1, 2, ... so that a token tells its place."""
    np.arange(count, dtype=dtype).tofile(path)
    manifest = Manifest(1, dtype, count, 1, 1 << 16 if dtype == "uint16" else 1 << 17, "", 0, count, "", ())
    return TokenFile(path, manifest)


def targets_of(windows: ShuffledWindows, epoch: int) -> list[list[int]]:
    """The scored targets of each window of an epoch, checked to follow their inputs, filled up at the end only."""
    found = []
    for number in range(epoch * windows.per_epoch, (epoch + 1) * windows.per_epoch):
        [inputs], [targets] = windows.batch(number, 1)
        scored = int((targets != -100).sum())
        assert (targets[:scored] == inputs[:scored] + 1).all()
        assert (targets[scored:] == -100).all()
        assert (inputs[scored:] == 0).all()
        found.append(targets[:scored].tolist())
    return found


@settings(max_examples=40)
@given(count=st.integers(3, 80), length=st.integers(2, 9), seed=st.integers(0, 3), epoch=st.integers(0, 5))
def test_each_target_comes_once_an_epoch(
    count: int, length: int, seed: int, epoch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """B78, B82: whatever is left over, the last token is a target, nothing beyond is read, and no window is empty."""
    assume(count > length)
    windows = ShuffledWindows(token_file(tmp_path_factory.mktemp("t") / "t.bin", count), length, seed)
    found = targets_of(windows, epoch)
    assert sorted(itertools.chain(*found)) == list(range(1, count))
    assert all(found)
    assert sum(len(targets) < length for targets in found) <= 3


def test_epochs_differ_in_order_and_cuts(tmp_path: Path) -> None:
    windows = ShuffledWindows(token_file(tmp_path / "t.bin", 1001), length=10, seed=0)
    epochs = [targets_of(windows, epoch) for epoch in range(4)]
    assert len({tuple(map(tuple, epoch)) for epoch in epochs}) == 4
    assert len({tuple(sorted(map(tuple, epoch))) for epoch in epochs}) > 1


def test_a_batch_may_reach_into_the_next_epochs(tmp_path: Path) -> None:
    windows = ShuffledWindows(token_file(tmp_path / "t.bin", 22), length=10, seed=0)
    one_by_one = [windows.batch(number, 1)[1] for number in range(24)]
    assert (windows.batch(1, 12)[1] == torch.cat(one_by_one[12:])).all()


@pytest.mark.parametrize("count", [1, 15, 16])
def test_less_than_a_window_is_refused_with_the_numbers(tmp_path: Path, count: int) -> None:
    """B77, B78."""
    tokens = token_file(tmp_path / "t.bin", count)
    with pytest.raises(TrainerError, match=rf"t\.bin: need at least 17 tokens, found {count}; lower --context-length"):
        ShuffledWindows(tokens, length=16, seed=0)


def test_a_step_has_the_same_windows_whatever_came_before(tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "t.bin", 5000)
    windows = ShuffledWindows(tokens, length=8, seed=3)
    in_order = [windows.batch(step, 4)[0] for step in range(5)]
    assert (ShuffledWindows(tokens, length=8, seed=3).batch(4, 4)[0] == in_order[4]).all()
    assert not (in_order[3] == in_order[4]).all()
    assert not (ShuffledWindows(tokens, length=8, seed=4).batch(4, 4)[0] == in_order[4]).all()


def test_windows_of_an_epoch_come_in_any_order(tmp_path: Path) -> None:
    """Over many epochs, each window is first equally often."""
    windows = ShuffledWindows(token_file(tmp_path / "t.bin", 17), length=2, seed=0)
    first = [windows.batch(epoch * windows.per_epoch, 1)[1][0, 0].item() // 2 for epoch in range(900)]
    counts = np.bincount(first, minlength=9)
    assert ((counts - 100) ** 2 / 100).sum() < 26.1  # chi-square: the 0.999 quantile for 8 degrees of freedom


def test_wide_tokens_are_read_whole(tmp_path: Path) -> None:
    windows = ShuffledWindows(token_file(tmp_path / "t.bin", 70_001, "uint32"), length=70_000, seed=0)
    assert windows.batch(0, 2)[0].max() == 69_999
