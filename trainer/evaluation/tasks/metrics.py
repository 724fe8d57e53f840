"""The metrics of tasks and their standard errors, as lm-evaluation-harness defines them (lm_eval/api/metrics.py)."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shared.system.cpu_count import available_processors
from trainer.evaluation.scoring import Floats

if TYPE_CHECKING:
    from array import array

_SEEDS = 100  # of the bootstrap; each draws the items so many times
_DRAWS = 1000
_INDICES_AT_ONCE = 1 << 20


class Metric(NamedTuple):
    """A result.

    Attributes:
        value: The value; infinite where it is too large for a float.
        stderr: Its standard error; None for a single item.
    """

    value: float
    stderr: float | None


class Accuracy:
    """How many items are right, each in one or several senses."""

    def __init__(self) -> None:
        self.items = 0
        self._right: dict[str, int] = {}

    def add(self, right: dict[str, bool]) -> None:
        """Count an item: whether it is right, by the name of the metric."""
        self.items += 1
        for name, is_right in right.items():
            self._right[name] = self._right.get(name, 0) + is_right

    def metrics(self) -> dict[str, Metric]:
        """The mean of each, with the standard error of a mean."""
        return {name: _mean(right, self.items) for name, right in self._right.items()}


def _mean(right: int, items: int) -> Metric:
    mean = right / items
    return Metric(mean, math.sqrt(mean * (1 - mean) / (items - 1)) if items > 1 else None)


def right_choices(log_likelihoods: Floats, choices: Sequence[str], gold: int) -> dict[str, bool]:
    """Whether the gold choice is the most likely one; the first one of equals counts.

    Returns:
        `acc`: by log-likelihood; `acc_norm`: by it over the characters of the choice; `acc_bytes`: over its bytes.
    """
    characters = np.array([len(choice) for choice in choices], np.float64)
    num_bytes = np.array([len(choice.encode()) for choice in choices], np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):  # an empty choice: minus infinity
        scores = {
            "acc": log_likelihoods,
            "acc_norm": log_likelihoods / characters,
            "acc_bytes": log_likelihoods / num_bytes,
        }
    return {name: int(np.argmax(score)) == gold for name, score in scores.items()}


def perplexity(log_likelihoods: "array[float]") -> Metric:
    """The exponential of the mean negative log-likelihood of an item, however many tokens it has.

    The standard error is the harness' bootstrap: 100,000 draws of as many items, by Python's generator with the seeds 0
    to 99, so that it is the same number.
    """
    values = np.frombuffer(log_likelihoods)
    value = _exp(-float(values.mean()))
    if len(values) < 2:
        return Metric(value, None)
    with ThreadPoolExecutor(available_processors()) as pool:
        draws = np.concatenate(list(pool.map(lambda seed: _bootstrap(values, seed), range(_SEEDS))))
    return Metric(value, float(draws.std(ddof=1)))


def _bootstrap(values: Floats, seed: int) -> Floats:
    # Seeded by an array, the Mersenne Twister of NumPy gives the numbers that Python's gives for the integer in it.
    generator = np.random.RandomState([seed])
    count = len(values)
    at_once = max(1, _INDICES_AT_ONCE // count)
    means = [
        values[(generator.random_sample((min(at_once, _DRAWS - first), count)) * count).astype(np.int64)].mean(axis=1)
        for first in range(0, _DRAWS, at_once)
    ]
    with np.errstate(over="ignore"):
        draws: Floats = np.exp(-np.concatenate(means))
    return draws


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
