"""What users of other servers met, asked of both samplers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from shared.lm import NO_TOKEN
from tests.services.inference.engine.sampler.any_sampler import KINDS, AnySampler, request

pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-9, 1e-4])
def test_tiny_temperatures_take_the_likeliest_token(kind, dtype, temperature):
    """B45: the limit is greedy, and nothing overflows on the way."""
    logits = torch.linspace(-60, 60, 121).roll(37).to(dtype).float().tolist()
    assert AnySampler(kind, 121).sample_some(logits, temperature=temperature, steps=5) == [36] * 5


def test_top_p_1_keeps_all_and_top_p_0_the_likeliest(kind):
    """B46."""
    sampler = AnySampler(kind, 4)
    counts = np.bincount(sampler.sample_some([0.0] * 4, top_p=1.0, steps=400), minlength=4)
    assert ((counts - 100) ** 2 / 100).sum() < 38  # chi-square with 3 degrees of freedom, its 3e-8 quantile
    assert sampler.sample_some([0, 0.1, 0, 0], top_p=0.0, steps=20) == [1] * 20


@pytest.mark.parametrize("top_k", [0, -1, 4, 5, 10**12, 10**30])
def test_top_k_off_or_beyond_the_vocabulary_keeps_all(kind, top_k):
    """B47."""
    assert set(AnySampler(kind, 4).sample_some([0.0] * 4, top_k=top_k, steps=80)) == {0, 1, 2, 3}


def test_more_log_probabilities_than_ids_give_all_that_are_possible(kind):
    """B47, B54: finite, and valid JSON, whatever is filtered."""
    sampler = AnySampler(kind, 4, valid=np.array([True, True, True, False]))
    sampler.open(2, request(num_logprobs=5, top_k=1, logit_bias=((1, 100.0),)))
    [draw] = sampler.sample(np.array([[9.0, -1e6, -np.inf, 20.0]], np.float32), [2])
    assert draw.token == 0
    assert draw.logprobs == (0.0, ((0, 0.0), (1, -9999.0)))
    json.dumps(draw, allow_nan=False)
    [scored] = sampler.score(np.array([[9.0, 9.0, -np.inf, 20.0]], np.float32), [2], 3)
    assert scored.chosen == -9999.0
    assert [token for token, _ in scored.top] == [0, 1]


def test_rows_without_a_distribution_fail_alone(kind):
    """B48."""
    nan, inf = np.nan, np.inf
    rows = [[0.0, nan, 1.0], [0.0, 1.0, 0.5], [inf, 0.0, 0.0], [-inf] * 3, [-inf, 0.0, -inf], [0, -nan, 0]]
    sampler = AnySampler(kind, 3)
    for temperature in (0.0, 1e-300, 1.0):
        for place in range(6):
            sampler.open(place, request(temperature=temperature, seed=3, num_logprobs=2))
        draws = sampler.sample(np.array(rows, np.float32), range(6))
        assert [draw.token == NO_TOKEN for draw in draws] == [True, False, True, True, False, True]
        assert draws[4].token == 1
        assert draws[0].logprobs is None


@pytest.mark.parametrize("bad", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
def test_log_probabilities_of_no_distribution_are_refused_not_made_up(kind, bad):
    """B48, for the prompt's: a perplexity of -9999 a token looks like one."""
    sampler = AnySampler(kind, 2)
    good = [0.0, -np.inf]
    for _ in range(2):
        with pytest.raises(ValueError, match="NaN or infinite"):
            sampler.score(np.array([good, bad], np.float32), [1, 1], 2)
        [scored] = sampler.score(np.array([good], np.float32), [1], 2)
        assert scored == (-9999.0, ((0, 0.0),))


@pytest.mark.parametrize("seed", [0, 2**31, 2**63 - 1])
def test_seeds_repeat(kind, seed):
    """B49; over the edge of what is held ready of random numbers."""
    sampler = AnySampler(kind, 100)
    first, second = (sampler.sample_some([0.0] * 100, seed=seed, steps=70) for _ in range(2))
    assert first == second


def test_different_seeds_draw_differently(kind):
    """B50."""
    sampler = AnySampler(kind, 1000)
    sequences = [
        tuple(sampler.sample_some([0.0] * 1000, seed=seed, steps=8, temperature=1.5))
        for seed in (1, 2, 3, 4, 5, 2**32 + 1, 2**62 + 1)
    ]
    assert len(set(sequences)) == len(sequences)


@pytest.mark.parametrize(
    ("temperature", "min_p", "expected"),
    [(1.0, 0.2, {0, 1}), (3.0, 0.2, {0, 1, 2, 3}), (1.0, 0.0, {0, 1, 2, 3}), (1.0, 1.0, {0})],
)
def test_min_p_is_measured_after_temperature(kind, temperature, min_p, expected):
    """B52."""
    logits = np.log([0.6, 0.3, 0.06, 0.04]).tolist()
    assert set(AnySampler(kind, 4).sample_some(logits, temperature=temperature, min_p=min_p, steps=150)) == expected


def test_penalties_change_what_greedy_takes(kind):
    """B51: a prompt's tokens count for repetition alone; negative logits are multiplied."""
    greedy = {"temperature": 0.0}
    sampler = AnySampler(kind, 3)
    assert sampler.sample_some([2.0, -2.0, 1.1], prompt=[0, 1], repetition_penalty=2.0, **greedy) == [2]
    assert sampler.sample_some([-2.0, -1.0, -1.5], prompt=[1], repetition_penalty=2.0, **greedy) == [2]
    assert sampler.sample_some([2.0, 1.0, 0.0], prompt=[0], presence_penalty=1.5, steps=3, **greedy) == [0, 1, 0]
    assert sampler.sample_some([2.0, 1.0, 0.0], frequency_penalty=0.75, steps=5, **greedy) == [0, 0, 1, 0, 1]


def test_stop_ids_wait_for_min_tokens_and_bias_comes_before_penalties(kind):
    sampler = AnySampler(kind, 3)
    values = {"stop_ids": [0, 10**9], "min_tokens": 2, "temperature": 0.0}
    assert sampler.sample_some([5.0, 1.0, 0.0], steps=4, **values) == [1, 1, 0, 0]
    assert sampler.sample_some([5.0, 1.0, 0.0], steps=2, logit_bias=((2, 4.5), (2, 2.0)), temperature=0.0) == [2, 2]
    # 1 + 5 is divided by 2; half of 1, plus 5, would be more than 4.
    assert sampler.sample_some(
        [4.0, 1.0, 0.0], prompt=[1], logit_bias=((1, 5.0),), repetition_penalty=2.0, temperature=0.0
    ) == [0]
    assert sampler.sample_some([5.0, 1.0, 0.0], steps=1, stop_ids=[0, 1, 2], min_tokens=1) == [NO_TOKEN]


def test_a_place_keeps_nothing_of_the_row_before(kind):
    sampler = AnySampler(kind, 3)
    logits = [2.0, 1.0, 0.0]
    sampler.sample_some(
        logits,
        steps=3,
        prompt=[0, 1],
        stop_ids=[0],
        min_tokens=9,
        logit_bias=((2, 50.0),),
        frequency_penalty=2.0,
        repetition_penalty=9.0,
    )
    sampler.close(0)
    assert sampler.sample_some(logits, steps=3, prompt=[2], temperature=0.0, frequency_penalty=0.1) == [0, 0, 0]


def test_an_evicted_row_goes_on_as_before(kind):
    sampler = AnySampler(kind, 50)
    logits, of = np.zeros((1, 50), np.float32), request(seed=9, presence_penalty=2.0, min_tokens=90, stop_ids=[7])
    sampler.open(0, of)
    drawn = [sampler.sample(logits, [0])[0].token for _ in range(80)]
    sampler.open(3, of, drawn[:66])
    assert [sampler.sample(logits, [3])[0].token for _ in range(14)] == drawn[66:]


def test_a_row_that_is_given_its_first_ids_draws_the_rest(kind):
    logits, wanted = np.zeros((1, 50), np.float32), {"seed": 9, "presence_penalty": 2.0, "repetition_penalty": 1.5}
    sampler = AnySampler(kind, 50)
    sampler.open(0, request([3, 4], min_tokens=90, stop_ids=[7], **wanted))
    drawn = [sampler.sample(logits, [0])[0].token for _ in range(80)]
    given = replace(request([3, 4, *drawn[:66]], min_tokens=90, stop_ids=[7], **wanted), num_given=66)
    sampler.open(3, given)
    assert [sampler.sample(logits, [3])[0].token for _ in range(10)] == drawn[66:76]
    sampler.open(5, given, drawn[66:76])
    assert [sampler.sample(logits, [5])[0].token for _ in range(4)] == drawn[76:], "evicted after that"


def test_a_bias_on_an_unknown_id_is_refused_by_name(kind):
    with pytest.raises(ValueError, match="logit_bias names id 3, outside of the vocabulary of 3"):
        AnySampler(kind, 3).open(0, request(logit_bias=((3, 1.0),)))
