import itertools
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainer.errors import TrainerError
from trainer.tokens.manifest import Manifest, Shard
from trainer.tokens.packed_windows import open_windows
from trainer.tokens.token_file import TokenFile
from trainer.tokens.windows import ShuffledWindows, UniformWindows, Windows

ORDERS = pytest.mark.parametrize("order", ["epochs", "uniform"])


def token_file(path: Path, count: int, dtype: str = "uint16") -> TokenFile:
    """The tokens 0, 1, 2, ... so that a token tells its place."""
    np.arange(count, dtype=dtype).tofile(path)
    size, shard = 1 << 16 if dtype == "uint16" else 1 << 17, Shard(path.name, 0, count, 1, count, "")
    return TokenFile(path.parent, "train", Manifest(3, dtype, count, 1, size, "", 0, count, "", (shard,), ()))


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


@ORDERS
@pytest.mark.parametrize("count", [1, 15, 16])
def test_less_than_a_window_is_refused_with_the_numbers(
    tmp_path: Path, count: int, order: Literal["epochs", "uniform"]
) -> None:
    """B77, B78."""
    tokens = token_file(tmp_path / "t.bin", count)
    with pytest.raises(
        TrainerError, match=rf"train\.json: need at least 17 tokens, found {count}; lower --context-length"
    ):
        open_windows(order, tokens, 16, 0)


@ORDERS
def test_a_step_has_the_same_windows_whatever_came_before(tmp_path: Path, order: Literal["epochs", "uniform"]) -> None:
    tokens = token_file(tmp_path / "t.bin", 5000)

    def windows(seed: int) -> Windows:
        return open_windows(order, tokens, 8, seed)

    in_order = [windows(3).batch(step, 4)[0] for step in range(5)]
    assert (windows(3).batch(4, 4)[0] == in_order[4]).all()
    assert (windows(3).batch(0, 20)[0] == torch.cat(in_order)).all()
    assert not (in_order[3] == in_order[4]).all()
    assert not (windows(4).batch(4, 4)[0] == in_order[4]).all()


def test_windows_of_an_epoch_come_in_any_order(tmp_path: Path) -> None:
    """Over many epochs, each window is first equally often."""
    windows = ShuffledWindows(token_file(tmp_path / "t.bin", 17), length=2, seed=0)
    first = [windows.batch(epoch * windows.per_epoch, 1)[1][0, 0].item() // 2 for epoch in range(900)]
    counts = np.bincount(first, minlength=9)
    assert ((counts - 100) ** 2 / 100).sum() < 26.1  # chi-square: the 0.999 quantile for 8 degrees of freedom


def test_uniform_windows_begin_everywhere_equally_often(tmp_path: Path) -> None:
    """The sizes and the bound of `test_get_batch` in CS336's assignment 1: 93 starts, 32,000 draws, five deviations."""
    windows = UniformWindows(token_file(tmp_path / "t.bin", 100), length=7, seed=0)
    starts: list[int] = []
    for step in range(1000):
        inputs, targets = windows.batch(step, 32)
        assert (targets == inputs + 1).all()
        assert (inputs == inputs[:, :1] + torch.arange(7)).all()
        starts += inputs[:, 0].tolist()
    counts = np.bincount(starts)
    assert len(counts) == 93
    deviation = (32_000 / 93 * (1 - 1 / 93)) ** 0.5
    assert np.abs(counts - 32_000 / 93).max() <= 5 * deviation
    assert ((counts - 32_000 / 93) ** 2 / (32_000 / 93)).sum() < 139.7  # chi-square: the 0.999 quantile for 92


def test_uniform_windows_of_a_file_of_one_window(tmp_path: Path) -> None:
    windows = UniformWindows(token_file(tmp_path / "t.bin", 8), length=7, seed=0)
    assert (windows.batch(5, 3)[1] == torch.arange(1, 8)).all()


def test_uniform_windows_see_63_percent_where_an_epoch_sees_all(tmp_path: Path) -> None:
    windows = UniformWindows(token_file(tmp_path / "t.bin", 60_001), length=10, seed=1)
    seen = len(set(windows.batch(0, 6_000)[1].flatten().tolist())) / 60_000
    assert seen == pytest.approx(1 - np.exp(-1), abs=0.01)


def test_wide_tokens_are_read_whole(tmp_path: Path) -> None:
    windows = ShuffledWindows(token_file(tmp_path / "t.bin", 70_001, "uint32"), length=70_000, seed=0)
    assert windows.batch(0, 2)[0].max() == 69_999
