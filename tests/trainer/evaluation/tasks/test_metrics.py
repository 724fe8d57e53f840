"""Metrics and standard errors, against the definitions written out with Python's own random numbers."""

import math
import random
import re
import statistics
from array import array

import numpy as np
import pytest

from trainer.evaluation.tasks.matching import Matching
from trainer.evaluation.tasks.metrics import Accuracy, perplexity, right_choices


def test_the_likeliest_choice_by_three_lengths() -> None:
    """Worked by hand: 5.5/5, 4/3 and 4.5/4 a character; 5.5/6, 4/3 and 4.5/7 a byte."""
    nats, choices = np.array([-5.5, -4.0, -4.5]), ["naïve", "cat", "🦊abc"]
    found = [right_choices(nats, choices, gold) for gold in range(3)]
    assert [each["acc"] for each in found] == [False, True, False]
    assert [each["acc_norm"] for each in found] == [True, False, False]
    assert [each["acc_bytes"] for each in found] == [False, False, True]


def test_the_first_of_equals_counts_and_an_empty_choice_is_never_likeliest_by_length() -> None:
    assert right_choices(np.array([-1.0, -1.0]), ["a", "b"], 0) == {"acc": True, "acc_norm": True, "acc_bytes": True}
    assert right_choices(np.array([-1.0, -9.0]), ["", "b"], 1) == {"acc": False, "acc_norm": True, "acc_bytes": True}


def test_the_standard_error_of_a_mean() -> None:
    accuracy, values = Accuracy(), [True, False, True, True, False]
    for value in values:
        accuracy.add({"acc": value})
    [metric] = accuracy.metrics().values()
    assert metric == pytest.approx((0.6, statistics.stdev(map(float, values)) / math.sqrt(5)))


def test_a_single_item_has_no_standard_error() -> None:
    accuracy = Accuracy()
    accuracy.add({"acc": True})
    assert accuracy.metrics() == {"acc": (1.0, None)}
    assert perplexity(array("d", [-2.0])) == (pytest.approx(math.exp(2)), None)


def test_the_bootstrap_is_the_harness_own() -> None:
    """`bootstrap_stderr` of lm_eval/api/metrics.py: 1,000 draws with each of the seeds 0 to 99."""
    values = [-1.5, -0.25, -4.0]
    draws = []
    for seed in range(100):
        generator = random.Random()
        generator.seed(seed)
        draws += [math.exp(-statistics.fmean(generator.choices(values, k=3))) for _ in range(1000)]
    assert perplexity(array("d", values)) == pytest.approx((math.exp(5.75 / 3), statistics.stdev(draws)))


def test_a_perplexity_beyond_floats() -> None:
    assert perplexity(array("d", [-800.0])).value == math.inf


@pytest.mark.parametrize(
    ("options", "text", "right"),
    [
        ({}, " Paris \n", True),
        ({}, "paris", False),
        ({}, "Paris.", False),
        ({"ignore_case": True}, "pARIS", True),
        ({"ignore_punctuation": True}, '"Paris."', True),
        ({"ignore": [re.compile(r"\bThe |\.$")]}, "The Paris.", True),
        ({"extract": re.compile(r"#### (\w+)")}, "It is in France #### Paris, or #### Rome", True),
        ({"extract": re.compile(r"(x)?(P\w+)")}, "so Paris", True),
        ({"extract": re.compile(r"P\w+")}, "so Paris it is", True),
        ({"extract": re.compile(r"#### (\w+)")}, "Paris", False),
        ({"extract": re.compile(r"(x*)")}, "Paris", False),
        ({}, "", False),
    ],
)
def test_matching(options: dict[str, object], text: str, right: bool) -> None:
    matching = Matching(**options)  # type: ignore[arg-type]
    assert matching.is_right(matching.answer(text), ["Rome", " Paris"]) is right
