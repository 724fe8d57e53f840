"""Smoothing and thinning against the obvious, and what an axis shows."""

import math

import numpy as np
import pytest

from trainer.report.curves import loss_limits, smooth, thin
from trainer.report.positions import binned
from trainer.runs.results import Curve


def curve(values: list[float]) -> Curve:
    return Curve(np.arange(1.0, len(values) + 1), np.array(values, dtype=float))


def test_smoothing_is_the_mean_of_what_is_around() -> None:
    values = [math.sin(i) if i % 7 else math.nan for i in range(300)]
    smoothed = smooth(curve(values)).values
    for place in (0, 1, 7, 150, 299):
        around = [v for v in values[max(0, place - 3) : place + 4] if not math.isnan(v)]
        assert smoothed[place] == pytest.approx(sum(around) / len(around))


def test_where_all_is_nan_the_smoothed_curve_breaks() -> None:
    smoothed = smooth(curve([1.0] * 100 + [math.nan] * 100)).values
    assert np.isfinite(smoothed[:100]).all()
    assert np.isnan(smoothed[110:]).all()


def test_few_points_stay_as_they_are() -> None:
    few = curve([3.0, 1.0, 2.0])
    assert smooth(few) is few
    assert thin(few) is few


def test_a_million_points_become_few_with_both_ends() -> None:
    thinned = thin(smooth(curve(list(range(1_000_000)))))
    assert len(thinned) == 500
    assert (thinned.steps[0], thinned.steps[-1]) == (1, 1_000_000)


def test_an_axis_leaves_out_the_first_steps_and_what_blew_up() -> None:
    normal = curve([8.0, 6.0] + [4.0 - i / 100 for i in range(100)])
    low, high = loss_limits([normal], [8.0]) or (0, 0)
    assert low < 3.01 < 4 < high < 5
    spiking = curve([8.0] * 5 + [500.0] * 50 + [3.0] * 50)
    assert (loss_limits([spiking], [8.0]) or (0, 0))[1] < 9
    assert loss_limits([curve([math.nan])], []) is None


def test_bins_are_means_of_all_their_tokens() -> None:
    sums, counts = np.array([10.0, 4, 9, 8, 0, 0]), np.array([5.0, 2, 3, 1, 0, 0])
    bins = binned(sums, counts)
    assert bins.steps[:3].tolist() == [1, 2, 3]
    assert bins.values[:3].tolist() == [2, 2, 3]
    assert (bins.values > 0).all()
    many = binned(np.ones(1_000) * 2, np.ones(1_000))
    assert len(many) < 40
    assert many.values == pytest.approx(2)
