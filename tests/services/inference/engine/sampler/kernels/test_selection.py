"""The cut that is found without sorting, against sorting."""

import numpy as np
import pytest

from services.inference.engine.sampler.cpu import _new_scratch
from services.inference.engine.sampler.kernels.arrays import NUM_BUCKETS
from services.inference.engine.sampler.kernels.scores import fill_buckets
from services.inference.engine.sampler.kernels.selection import find_cut


@pytest.mark.parametrize("deviation", [0.01, 0.5, 3.0, 100.0])
@pytest.mark.parametrize("digits", [1, 7])
@pytest.mark.parametrize("size", [64, 5_000])
def test_the_cut_is_where_sorting_finds_it(deviation, digits, size):
    """With one digit, most scores have equals; the smaller the deviation, the more ids are in one class."""
    scores = np.round(np.random.default_rng(size).normal(size=size) * deviation, digits).astype(np.float32)
    scratch = _new_scratch(size)
    scratch.scores[:size] = scores
    peak = scores.max()
    scratch.weights[:size] = np.exp(scores.astype(np.float64) - peak)
    fill_buckets(scratch.scores, scratch.buckets, float(peak), NUM_BUCKETS / 24, NUM_BUCKETS)
    falling = np.sort(scores)[::-1]
    masses = np.exp(falling.astype(np.float64) - peak).cumsum()
    for share in (0.001, 0.3, 0.95, 0.999):
        kept = int((masses < share * masses[-1]).sum()) + 1
        for wanted, by_count in ((share * masses[-1], False), (float(kept), True)):
            find_cut(scratch, wanted, by_count)
            cut = falling[kept - 1]
            ties = (kept - (scores > cut).sum(), (scores == cut).sum())
            assert tuple(scratch.cut) == (cut, *ties)
