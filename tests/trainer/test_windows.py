from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import TrainerError
from trainer.tokenfile import Manifest, TokenFile
from trainer.windows import RandomWindows, consecutive_windows


def token_file(path: Path, count: int, dtype: str = "uint16") -> TokenFile:
    """The tokens 0, 1, 2, ... so that a token tells its place."""
    np.arange(count, dtype=dtype).tofile(path)
    manifest = Manifest(1, dtype, count, 1, 1 << 16, "", 0, count, "", ())
    return TokenFile(path, np.memmap(path, dtype=dtype, mode="r"), manifest)


@pytest.mark.parametrize("extra", [1, 2, 5, 16])
def test_windows_reach_the_whole_file_and_no_further(tmp_path: Path, extra: int) -> None:
    """B78: whatever is left over, the last token is a target and nothing beyond it is read."""
    tokens = token_file(tmp_path / "t.bin", 16 + extra)
    windows = RandomWindows(tokens, length=16, seed=0)
    inputs, targets = windows.batch(0, 500)
    assert inputs.shape == targets.shape == (500, 16)
    assert (targets == inputs + 1).all()
    assert set(inputs[:, 0].tolist()) == set(range(extra))
    assert targets.max() == 15 + extra


@pytest.mark.parametrize("count", [1, 15, 16])
def test_less_than_a_window_is_refused_with_the_numbers(tmp_path: Path, count: int) -> None:
    """B77, B78."""
    tokens = token_file(tmp_path / "t.bin", count)
    with pytest.raises(TrainerError, match=f"t.bin: {count} tokens are too few .* context_length 16"):
        RandomWindows(tokens, length=16, seed=0)


def test_a_step_has_the_same_windows_whatever_came_before(tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "t.bin", 5000)
    windows = RandomWindows(tokens, length=8, seed=3)
    in_order = [windows.batch(step, 4)[0] for step in range(5)]
    assert (RandomWindows(tokens, length=8, seed=3).batch(4, 4)[0] == in_order[4]).all()
    assert not (in_order[3] == in_order[4]).all()
    assert not (RandomWindows(tokens, length=8, seed=4).batch(4, 4)[0] == in_order[4]).all()


def test_windows_are_spread_evenly(tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "t.bin", 108)
    starts = RandomWindows(tokens, length=8, seed=0).batch(0, 100_000)[0][:, 0]
    counts = np.bincount(starts, minlength=100)
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 148  # the 0.999 quantile for 99 degrees of freedom


def test_wide_tokens_are_read_whole(tmp_path: Path) -> None:
    inputs, _ = RandomWindows(token_file(tmp_path / "t.bin", 70_001, "uint32"), length=70_000, seed=0).batch(0, 1)
    assert inputs[0, -1] == 69_999


@given(count=st.integers(0, 80), length=st.integers(1, 9), size=st.integers(1, 5))
def test_consecutive_windows_have_every_token_but_the_first_as_target_once(count: int, length: int, size: int) -> None:
    """B77, B78: nothing is padded, dropped or repeated."""
    batches = list(consecutive_windows(np.arange(count), length, size))
    targets = [target for _, batch in batches for window in batch for target in window.tolist()]
    assert targets == list(range(1, count))
    assert all((batch == inputs + 1).all() for inputs, batch in batches)
    assert all(len(inputs) <= size for inputs, _ in batches)
