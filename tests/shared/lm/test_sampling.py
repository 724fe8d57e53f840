"""Sampling against transformers' logits processors, and against exact small cases."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from shared.lm import NO_TOKEN, SampledRow, SamplingError, SamplingParams, sample, top_logprobs
from shared.lm.sampling import distribution, penalize, uniform


def log(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def draw(logits: torch.Tensor, *, steps: int = 1, valid_tokens: torch.Tensor | None = None, **params) -> list[int]:
    """Draw one token at each of some steps from the same logits [vocab_size]."""
    rows = [SampledRow(SamplingParams(**params), step=step) for step in range(steps)]
    return sample(logits.expand(steps, -1), rows, valid_tokens=valid_tokens)


def kept(logits: torch.Tensor, **params) -> set[int]:
    return set(distribution(logits, SamplingParams(**params)).nonzero().flatten().tolist())


def assert_drawn_from(tokens: list[int], probabilities: np.ndarray) -> None:
    """Chi-square test; its 1e-6 quantile is below mean + 7 standard deviations for these few degrees of freedom."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    possible = probabilities > 0
    assert not counts[~possible].any()
    expected = probabilities[possible] * len(tokens)
    freedom = possible.sum() - 1
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    assert statistic <= freedom + 7 * math.sqrt(2 * freedom), (counts, expected)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([2, 7, 300, 3000]),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 5, 290, 10_000]),
    top_p=st.sampled_from([1.0, 0.97, 0.5, 1e-6]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
)
def test_the_distribution_equals_that_of_transformers(seed, size, temperature, top_k, top_p, min_p):
    scores = 3 * torch.randn(1, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    warpers.append(TopPLogitsWarper(top_p))
    warpers.append(MinPLogitsWarper(min_p))
    expected = warpers(None, scores).softmax(-1)[0]
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    actual = distribution(scores[0], params)
    torch.testing.assert_close(actual / actual.sum(), expected, rtol=1e-9, atol=1e-15)


def test_draws_follow_the_distribution_in_a_batch_of_different_rows():
    logits = torch.tensor([1.0, 0.5, 0.0, -0.5, -1.0, -torch.inf])
    settings_of_rows = [
        {"temperature": 1.0},
        {"temperature": 2.0, "top_k": 4},
        {"temperature": 0.7, "top_p": 0.8},
        {"temperature": 1.5, "min_p": 0.3},
        {"temperature": 0.0},
    ]
    num_draws = 1500
    rows = [
        SampledRow(SamplingParams(seed=seed, **values), step=step)
        for step in range(num_draws)
        for seed, values in enumerate(settings_of_rows)
    ]
    tokens = sample(logits.expand(len(rows), -1), rows)
    exponentials = [np.exp(logits.double().numpy() / (values["temperature"] or 0.01)) for values in settings_of_rows]
    for index, (weights, num_kept) in enumerate(zip(exponentials, (5, 4, 3, 4, 1), strict=True)):
        weights[num_kept:] = 0
        assert_drawn_from(tokens[index :: len(settings_of_rows)], weights / weights.sum())


def test_a_row_draws_the_same_alone_and_in_any_batch():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    rows = [
        SampledRow(SamplingParams(temperature=1.3, top_p=0.9, seed=seed, repetition_penalty=1.2), frozenset({1, 2}))
        for seed in range(6)
    ]
    together = sample(logits, rows)
    assert [sample(logits[index : index + 1], [row])[0] for index, row in enumerate(rows)] == together
    assert sample(logits.flip(0), rows[::-1]) == together[::-1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-9, 1e-4])
def test_tiny_temperatures_take_the_likeliest_token(temperature, dtype):
    """B45: the limit is greedy, and nothing overflows on the way."""
    logits = torch.linspace(-60, 60, 121).roll(37).to(dtype)
    assert draw(logits, temperature=temperature, steps=20) == [36] * 20


def test_equal_logits_are_decided_for_the_lowest_id():
    logits = torch.tensor([0.0, 2.0, 2.0, 2.0])
    for params in ({"temperature": 0.0}, {"temperature": 1e-300}, {"top_k": 1}, {"top_p": 0.0}):
        assert draw(logits, **params) == [1]
    assert kept(logits, top_k=2) == {1, 2}
    assert kept(torch.zeros(2000), top_k=1000) == set(range(1000))


def test_top_p_1_keeps_all_and_top_p_0_the_likeliest():
    """B46."""
    uniform_logits = torch.zeros(4)
    assert_drawn_from(draw(uniform_logits, top_p=1.0, steps=2000), np.full(4, 0.25))
    assert draw(torch.tensor([0.0, 0.1, 0.0, 0.0]), top_p=0.0, steps=50) == [1] * 50


def test_top_p_keeps_the_token_that_crosses_it():
    logits = log(0.5, 0.3, 0.15, 0.05)
    assert kept(logits, top_p=0.49) == {0}
    assert kept(logits, top_p=0.51) == {0, 1}
    assert kept(logits, top_p=0.81) == {0, 1, 2}
    assert kept(logits, top_p=0.96) == {0, 1, 2, 3}


def test_top_p_looks_as_far_as_it_must():
    logits = torch.zeros(10_000)
    assert kept(logits, top_p=0.75) == set(range(7500))
    assert kept(logits, top_k=1000, top_p=0.75) == set(range(750))


@pytest.mark.parametrize("top_k", [0, -1, 4, 5, 10**12, 10**30])
def test_top_k_off_or_beyond_the_vocabulary_keeps_all(top_k):
    """B47."""
    assert kept(log(0.4, 0.3, 0.2, 0.1), top_k=top_k) == {0, 1, 2, 3}
    assert len(draw(torch.zeros(4), top_k=top_k, top_p=0.9)) == 1


def test_top_k_keeps_the_k_likeliest():
    assert kept(log(0.1, 0.4, 0.2, 0.3), top_k=2) == {1, 3}


@pytest.mark.parametrize(
    ("temperature", "min_p", "expected"),
    [(1.0, 0.2, {0, 1}), (3.0, 0.2, {0, 1, 2, 3}), (1.0, 0.0, {0, 1, 2, 3}), (1.0, 1.0, {0})],
)
def test_min_p_is_measured_after_temperature(temperature, min_p, expected):
    """B52."""
    assert kept(log(0.6, 0.3, 0.06, 0.04), temperature=temperature, min_p=min_p) == expected


def test_unusable_rows_fail_alone():
    """B48."""
    nan, inf = torch.nan, torch.inf
    logits = torch.tensor([[0.0, nan, 1.0], [0.0, 1.0, 0.5], [inf, 0.0, 0.0], [-inf, -inf, -inf], [-inf, 0.0, -inf]])
    for temperature in (0.0, 1e-300, 1.0):
        tokens = sample(logits, [SampledRow(SamplingParams(temperature=temperature, seed=3))] * 5)
        assert tokens[0] == tokens[2] == tokens[3] == NO_TOKEN
        assert tokens[1] != NO_TOKEN
        assert tokens[4] == 1


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    """B51, the values of the case; a prompt's tokens count."""
    row = SampledRow(SamplingParams(repetition_penalty=2.0), prompt=frozenset({0}))
    row.append(1)
    assert penalize(torch.tensor([2.0, -2.0, 1.0]), row).tolist() == [1.0, -4.0, 1.0]


def test_the_smallest_repetition_penalty_draws_what_is_there():
    row = SampledRow(SamplingParams(repetition_penalty=5e-324), prompt=frozenset({1}))
    assert sample(torch.tensor([[3.0, 2.0, 1.0]]), [row]) == [1]


def test_repetition_penalty_equals_that_of_transformers():
    scores = torch.randn(1, 40, generator=torch.Generator().manual_seed(4))
    prompt, output = [3, 7, 7, 12], [12, 30]
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([prompt + output]), scores.clone())
    row = SampledRow(SamplingParams(repetition_penalty=1.7), frozenset(prompt))
    for token in output:
        row.append(token)
    torch.testing.assert_close(penalize(scores[0], row), expected[0])


def test_presence_and_frequency_penalties_count_the_output_alone():
    """B51. The formula is that of OpenAI's API reference."""
    row = SampledRow(SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), prompt=frozenset({0, 1}))
    for token in (1, 1, 2):
        row.append(token)
    assert penalize(torch.zeros(4), row).tolist() == [0.0, -1.0, -0.75, 0.0]


def test_bias_is_added_before_penalties():
    """As in vLLM: (1 + 5) / 2 is less than 4, and 1 / 2 + 5 would be more."""
    params = SamplingParams(temperature=0.0, logit_bias=((1, 5.0),), repetition_penalty=2.0)
    assert sample(torch.tensor([[4.0, 1.0, 0.0]]), [SampledRow(params, prompt=frozenset({1}))]) == [0]
    assert sample(torch.tensor([[4.0, 1.0, 0.0]]), [SampledRow(params)]) == [1]
    assert draw(torch.zeros(3), logit_bias=((2, 60.0), (2, 40.0), (1, 99.0)), seed=5) == [2]


def test_bias_of_minus_100_forbids_an_id_and_what_is_impossible_stays_so():
    logits = torch.tensor([3.0, 1.0, -torch.inf])
    assert set(draw(logits, steps=200, logit_bias=((0, -100.0), (2, 100.0)))) == {1}


def test_stop_ids_are_not_drawn_before_min_tokens():
    logits = torch.tensor([[5.0, 1.0, 0.0]])
    row = SampledRow(SamplingParams(temperature=0.0), min_tokens=2, stop_ids=frozenset({0}))
    for expected in (1, 1, 0):
        [token] = sample(logits, [row])
        assert token == expected
        row.append(token)
    all_stop = SampledRow(SamplingParams(), min_tokens=1, stop_ids=frozenset({0, 1, 2}))
    assert sample(logits, [all_stop]) == [NO_TOKEN]


@pytest.mark.parametrize(("size", "kept_ids"), [(3, 2), (7, 3), (10, 3), (49, 48), (1000, 333)])
def test_a_top_p_that_is_hit_exactly_keeps_no_id_more(size, kept_ids):
    assert kept(torch.zeros(size), top_p=kept_ids / size) == set(range(kept_ids))
    assert kept(torch.zeros(size), top_p=kept_ids / size + 1e-6) == set(range(kept_ids + 1))


def test_scores_whose_probabilities_are_equal_are_still_ordered():
    """exp(1e-30) and exp(2e-30) are the same number."""
    assert kept(torch.tensor([1e-30, 2e-30, 0.0]), top_k=1) == {1}


@pytest.mark.parametrize("seed", [0, 2**31, 2**63 - 1])
def test_seeds_repeat(seed):
    """B49."""
    assert draw(torch.zeros(100), seed=seed, steps=20) == draw(torch.zeros(100), seed=seed, steps=20)


@pytest.mark.parametrize(("number", "expected"), [(0.0, 1), (0.49, 1), (0.51, 2), (1 - 2**-53, 2)])
def test_the_ends_of_the_unit_interval_draw_possible_tokens(monkeypatch, number, expected):
    monkeypatch.setattr("shared.lm.sampling.uniform", lambda seed, step: number)
    assert draw(log(0.0, 0.5, 0.5, 0.0)) == [expected]


def test_seeds_and_steps_draw_differently():
    """B50."""
    logits = torch.zeros(1000)
    sequences = [tuple(draw(logits, seed=seed, steps=8)) for seed in (1, 2, 3, 4, 5, 2**32 + 1, 2**62 + 1)]
    assert len(set(sequences)) == len(sequences)
    assert all(len(set(sequence)) > 4 for sequence in sequences)


def test_uniform_numbers_are_uniform_over_seeds_and_over_steps():
    for numbers in ([uniform(seed, 0) for seed in range(2000)], [uniform(7, step) for step in range(2000)]):
        assert_drawn_from([int(10 * number) for number in numbers], np.full(10, 0.1))


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1},
        {"temperature": 999_999},
        {"temperature": math.nan},
        {"temperature": "1"},
        {"temperature": True},
        {"top_p": -0.1},
        {"top_p": 1.0000001},
        {"top_p": 2},
        {"min_p": 1.1},
        {"min_p": -0.1},
        {"top_k": -2},
        {"top_k": 1.0},
        {"top_k": True},
        {"repetition_penalty": 0},
        {"repetition_penalty": -1},
        {"repetition_penalty": math.inf},
        {"presence_penalty": 2.5},
        {"frequency_penalty": 1e30},
        {"seed": -1},
        {"seed": 2**63},
        {"seed": 2**64},
        {"seed": 1.5},
        {"seed": "7"},
        {"seed": None},
    ],
    ids=str,
)
def test_parameters_out_of_range_are_refused_by_name_and_value(values):
    """B46, B49, B52, B53."""
    [(name, value)] = values.items()
    with pytest.raises(SamplingError) as caught:
        SamplingParams(**values)
    assert str(caught.value).startswith(name)
    assert str(caught.value).endswith(f"got {value!r}")


def test_invalid_tokens_are_never_drawn():
    """B100: untrained rows of a padded embedding can have the greatest logits."""
    logits = torch.tensor([0.0, 9.0, 1.0, 9.0])
    valid = torch.tensor([True, False, True, False])
    assert draw(logits, temperature=0.0, valid_tokens=valid) == [2]
    assert set(draw(logits, temperature=5.0, steps=500, valid_tokens=valid)) == {0, 2}


def test_log_probabilities_are_the_models_own_and_finite():
    """B54."""
    logits = torch.stack([log(0.5, 0.25, 0.125, 0.125), torch.tensor([0.0, -torch.inf, 0.0, 0.0]).double()])
    (chosen, top), (impossible, _) = top_logprobs(logits, [1, 1], 3)
    assert chosen == pytest.approx(math.log(0.25))
    assert [token for token, _ in top][:2] == [0, 1]
    assert [value for _, value in top] == pytest.approx([math.log(0.5), math.log(0.25), math.log(0.125)])
    assert impossible == -9999.0


def test_log_probabilities_of_more_ids_than_there_are_give_all_valid_ones():
    """B47."""
    valid = torch.tensor([True, False, True])
    [(chosen, top)] = top_logprobs(torch.tensor([[0.0, 9.0, 0.0]]), [2], 20, valid_tokens=valid)
    assert chosen == pytest.approx(math.log(0.5))
    assert sorted(token for token, _ in top) == [0, 2]
    assert len(top_logprobs(torch.zeros(1, 3), [0], 20)[0][1]) == 3
