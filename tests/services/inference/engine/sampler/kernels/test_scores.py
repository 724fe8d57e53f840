"""Passes over the scores of a row, against NumPy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.inference.engine.sampler.kernels.arrays import BLOCK
from services.inference.engine.sampler.kernels.scores import copy_scores, fill_weights, greatest


@pytest.mark.parametrize("temperature", [1e-5, 0.01, 0.8, 1.0, 100.0])
def test_weights_are_exponentials_to_the_last_bits(temperature):
    """Also far below the greatest score, where the error of the distance in float64 counts as many times."""
    generator = np.random.default_rng(0)
    scores = np.concatenate([generator.normal(size=3 * BLOCK) * 3, generator.uniform(-900, 1, size=BLOCK)])
    scores = scores.astype(np.float32)
    scores[::7] = -np.inf
    scores[100:110] = peak = scores.max()
    weights, sums = np.zeros(len(scores)), np.zeros(4)
    total = fill_weights(scores, weights, sums, float(peak), 1 / temperature)
    distances = (scores.astype(np.float64) - float(peak)) / temperature
    expected = np.where(distances > -709, np.exp(distances), 0)
    finite = np.maximum(distances, -1e3)
    assert (np.abs(weights - expected) <= expected * (1e-15 - 5e-16 * finite) + 1e-307).all()
    assert (weights[scores == -np.inf] == 0).all()
    assert (weights[scores == peak] == 1).all()
    assert sums == pytest.approx(weights.reshape(4, BLOCK).sum(1), rel=1e-14)
    assert total == pytest.approx(math.fsum(weights), rel=1e-14)


@settings(max_examples=100, deadline=None)
@given(numbers=st.lists(st.floats(width=32), min_size=1, max_size=70), start=st.integers(0, 5))
def test_the_greatest_score_is_the_greatest_and_not_a_number_where_one_is_not(numbers, start):
    row = np.array(numbers, np.float32)
    scores = np.full(2 * BLOCK, -np.inf, np.float32)
    logits = np.concatenate([np.full(start, np.nan, np.float32), row, [np.float32(np.inf)]])
    found = copy_scores(logits, start, scores, len(row))
    np.testing.assert_array_equal(scores[: len(row)], row)
    for number in (found, greatest(scores)):
        np.testing.assert_array_equal(number, row.max())
