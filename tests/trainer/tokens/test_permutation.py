import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.tokens.permutation import ROUNDS, permute, random_numbers


def keys(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, ROUNDS, dtype=np.uint64)


@given(count=st.integers(1, 3000), seed=st.integers(0, 100))
def test_it_is_one_to_one(count: int, seed: int) -> None:
    numbers = np.arange(count, dtype=np.uint64)
    assert sorted(permute(numbers, count, keys(seed)).tolist()) == list(range(count))


def test_a_number_goes_where_it_goes_whatever_is_asked_beside_it() -> None:
    numbers = np.arange(1000, dtype=np.uint64)
    together = permute(numbers, 1000, keys(0))
    assert [permute(numbers[i : i + 1], 1000, keys(0))[0] for i in range(20)] == together[:20].tolist()


def test_domains_beyond_any_file() -> None:
    count = 10**15
    some = np.arange(count - 1000, count, dtype=np.uint64)
    moved = permute(some, count, keys(0))
    assert len(set(moved.tolist())) == 1000
    assert moved.max() < count
    assert moved.std() > 0.2 * count  # 0.29 for even ones; the numbers asked for have 3e-13


@pytest.mark.parametrize("count", [2, 5, 33])
def test_every_number_comes_to_every_place_equally_often(count: int) -> None:
    """Chi-square, at the 0.9999 quantile of its normal approximation."""
    numbers, trials = np.arange(count, dtype=np.uint64), 30 * count
    seen = np.zeros((count, count))
    for seed in range(trials):
        seen[numbers, permute(numbers, count, keys(seed))] += 1
    freedom = (count - 1) ** 2
    assert ((seen - 30) ** 2 / 30).sum() < freedom + 3.8 * max(2, 2 * freedom) ** 0.5


def test_random_numbers_are_splitmix64s() -> None:
    """The first five of seed 1234567, as Rosetta Code's task "Pseudo-random numbers/Splitmix64" lists them."""
    published = [
        *(6457827717110365317, 3203168211198807973, 9817491932198370423),
        *(4593380528125082431, 16408922859458223821),
    ]
    assert random_numbers(0, 5, 1234567).tolist() == published
    assert random_numbers(3, 2, 1234567).tolist() == published[3:]
    assert random_numbers(2**40, 3, 2**64 - 1).tolist()[2] == random_numbers(2**40 + 2, 1, 2**64 - 1)[0]
