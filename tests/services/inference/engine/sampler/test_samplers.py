"""Both samplers against the float64 reference of `shared.lm`, which is tested against transformers' processors."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from services.inference.engine.runner.cpu.thread_pool import KernelThreadPool
from services.inference.engine.sampler import CpuSampler
from services.inference.engine.types import SequenceRequest, TokenLogprobs
from shared.lm import NO_TOKEN, SampledRow, sample, top_logprobs
from tests.services.inference.engine.sampler.any_sampler import KINDS, AnySampler, request


def reference_row(of: SequenceRequest, output: Sequence[int] = ()) -> SampledRow:
    row = SampledRow(of.params, frozenset(of.prompt_ids), min_tokens=of.min_tokens, stop_ids=of.stop_ids)
    for token in output:
        row.append(token)
    return row


def assert_close(actual: TokenLogprobs | None, expected: tuple[float, list[tuple[int, float]]]) -> None:
    assert actual is not None
    assert actual.chosen == pytest.approx(expected[0], abs=1e-9)
    assert [token for token, _ in actual.top] == [token for token, _ in expected[1]]
    assert [value for _, value in actual.top] == pytest.approx([value for _, value in expected[1]], abs=1e-9)


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, list[SequenceRequest], list[list[int]], np.ndarray]:
    """Logits of several kinds, requests of several kinds, what they have drawn, and which ids are valid."""
    size = draw(st.sampled_from([2, 3, 7, 128, 129, 1000, 1000, 50_000]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    ids = st.integers(0, size - 1)
    some_ids = st.lists(ids, max_size=6)
    logits, requests, outputs = [], [], []
    for _ in range(draw(st.integers(1, 4))):
        scale = draw(st.sampled_from([0.01, 1.0, 3.0, 30.0, 1e30]))
        row = generator.normal(size=size) * scale
        kind = draw(st.sampled_from(["plain", "plain", "ties", "equal", "peaked", "impossible", "nan", "inf", "none"]))
        if kind == "ties":
            row = np.round(row)
        elif kind == "equal":
            row[:] = row[0]
        elif kind == "peaked":
            row[generator.integers(size)] += 12 * scale
        elif kind == "impossible":
            row[generator.random(size) < 0.5] = -np.inf
        elif kind in {"nan", "inf"}:
            row[generator.integers(size)] = draw(st.sampled_from([np.nan, -np.nan])) if kind == "nan" else np.inf
        elif kind == "none":
            row[:] = -np.inf
        logits.append(row.astype(np.float32))
        outputs.append(draw(some_ids))
        requests.append(
            request(
                draw(st.lists(ids, min_size=1, max_size=6)),
                stop_ids=draw(some_ids),
                min_tokens=draw(st.sampled_from([0, 0, 3, 100])),
                num_logprobs=draw(st.sampled_from([None, 0, 1, 5, size])) if size <= 1000 else None,
                temperature=draw(st.sampled_from([0.0, 1e-300, 1e-4, 0.3, 0.8, 1.0, 2.5, 100.0])),
                top_p=draw(st.sampled_from([1.0, 1.0, 0.95, 0.75, 0.5, 1 / 3, 1e-6, 0.0])),
                top_k=draw(st.sampled_from([0, -1, 1, 2, 5, size - 1, size, size + 1, 10**12, 10**30])),
                min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0])),
                repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.5, 10.0, 5e-324])),
                presence_penalty=draw(st.sampled_from([0.0, 0.0, 2.0, -1.5])),
                frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.7, -2.0])),
                logit_bias=tuple((token, draw(st.sampled_from([-100.0, 0.1, 3, 100.0]))) for token in draw(some_ids)),
                seed=draw(st.integers(0, 2**63 - 1)),
            )
        )
    valid = np.ones(size, np.bool_)
    if draw(st.booleans()):
        valid[generator.random(size) < 0.3] = False
    return np.stack(logits), requests, outputs, valid


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(batch=batches(), num_threads=st.integers(1, 3))
def test_draws_and_log_probabilities_equal_those_of_the_reference(kind, batch, num_threads):
    """B45, B47, B48, B51, B52 and B54, in any mixture."""
    logits, requests, outputs, valid = batch
    assume(kind != "kernel" or logits.shape[1] <= 1000)  # Triton's interpreter takes seconds for more
    sampler = AnySampler(kind, logits.shape[1], valid=valid, num_threads=num_threads)
    places = list(range(len(requests)))[::-1]
    for place, of, output in zip(places, requests, outputs, strict=True):
        sampler.open(place, of, output)
    rows = [reference_row(of, output) for of, output in zip(requests, outputs, strict=True)]
    mask = torch.from_numpy(valid)
    before = logits.copy()
    for _ in range(2):  # what was drawn counts in the second one
        expected = sample(torch.from_numpy(logits), rows, valid_tokens=mask)
        draws = sampler.sample(logits, places)
        assert [(draw.slot, draw.token) for draw in draws] == list(zip(places, expected, strict=True))
        for index, (draw, of, row) in enumerate(zip(draws, requests, rows, strict=True)):
            if draw.token == NO_TOKEN or of.num_logprobs is None:
                assert draw.logprobs is None
            else:
                one = torch.from_numpy(logits[index : index + 1])
                assert_close(draw.logprobs, top_logprobs(one, [draw.token], of.num_logprobs, valid_tokens=mask)[0])
            if draw.token != NO_TOKEN:
                row.append(draw.token)
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(size=st.integers(2, 300), kept=st.integers(1, 300), below=st.integers(0, 200), seed=st.integers(0, 1000))
@example(size=4, kept=2, below=0, seed=0)
def test_top_p_that_is_hit_exactly_keeps_no_id_more(kind, size, kept, below, seed):
    """Of `size` equally likely ids, the lowest `kept` have `kept` / `size` of the mass."""
    kept = min(kept, size)
    logits = np.full((1, size + below), -np.inf, np.float32)
    likely = np.sort(np.random.default_rng(seed).permutation(size + below)[:size])
    logits[0, likely] = 1.5
    sampler = AnySampler(kind, size + below)
    for top_p, most in ((kept / size, kept), (min(1.0, kept / size + 1e-6), min(kept + 1, size))):
        sampler.open(0, request(top_p=top_p, seed=seed))
        drawn = {sampler.sample(logits, [0])[0].token for _ in range(5 if kind == "kernel" else 30)}
        assert drawn <= set(likely[:most].tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_top_p_between_two_masses_keeps_the_id_that_crosses_it(kind):
    """The masses are 1/2, 1/4, 1/8 and 1/8 in float32, as near as it gets."""
    logits = np.log([0.5, 0.25, 0.125, 0.125])
    for top_p, expected in (
        (0.4999, {0}),
        (0.5001, {0, 1}),
        (0.7499, {0, 1}),
        (0.7501, {0, 1, 2}),
        (0.8751, {0, 1, 2, 3}),
    ):
        assert set(AnySampler(kind, 4).sample_some(logits, steps=60, top_p=top_p, seed=2)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_rows_begun_at_different_times_draw_the_reference_s_ids_past_what_is_held_ready(kind):
    """Each row's next random numbers are drawn 64 at a time; here the rows run out of them in different steps."""
    logits = np.random.default_rng(4).normal(size=(3, 40)).astype(np.float32)
    sampler = AnySampler(kind, 40)
    rows = []
    for place, output in enumerate(([], [1] * 30, [2] * 63)):
        sampler.open(place, request(seed=place, temperature=1.3), output)
        rows.append(reference_row(request(seed=place, temperature=1.3), output))
    for _ in range(140):
        expected = sample(torch.from_numpy(logits), rows)
        assert [draw.token for draw in sampler.sample(logits, range(3))] == expected
        for row, token in zip(rows, expected, strict=True):
            row.append(token)


MIXTURES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 4},
    {"top_p": 0.8},
    {"min_p": 0.15},
    {"repetition_penalty": 1.5},
    {"presence_penalty": 1.0},
    {"frequency_penalty": 0.5},
    {"logit_bias": ((3, 1.5), (0, -1.0))},
    {"temperature": 1.4, "top_k": 6, "top_p": 0.9, "min_p": 0.1},
    {"temperature": 0.7, "top_p": 0.95, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "logit_bias": ((9, 2.0),)},
]  # fmt: skip


def distribution_by_hand(logits: np.ndarray, prompt: list[int], output: list[int], **values: Any) -> np.ndarray:
    """The distribution in float64, written out for a few ids: independent of the code under test and its reference."""
    scores = logits.astype(np.float64)
    for token, bias in values.get("logit_bias", ()):
        scores[token] += bias
    for token in set(prompt + output):
        factor = values.get("repetition_penalty", 1.0)
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    for token in set(output):
        scores[token] -= values.get("presence_penalty", 0.0)
        scores[token] -= values.get("frequency_penalty", 0.0) * output.count(token)
    probabilities = np.exp(scores / values.get("temperature", 1.0))
    probabilities /= probabilities.sum()
    order = np.argsort(-probabilities, kind="stable")
    probabilities[order[values.get("top_k", len(order)) :]] = 0
    probabilities /= probabilities.sum()
    reached = np.flatnonzero(np.cumsum(probabilities[order]) >= values.get("top_p", 1.0) - 1e-12)
    probabilities[order[reached[0] + 1 :]] = 0
    probabilities[probabilities < values.get("min_p", 0.0) * probabilities.max()] = 0
    return probabilities / probabilities.sum()


@pytest.mark.parametrize("kind", ["cpu", "torch"])
def test_draws_follow_the_distribution_of_each_parameter_and_of_mixtures(kind):
    """Chi-square with fixed seeds, all mixtures in one batch; B50, B51, B52.

    20,000 draws of each (torch: 5,000): 50 rows with seeds of their own, 400 steps. Penalties change with what is
    drawn, so rows with them are opened anew for each draw, and only for 2,500.
    """
    logits = np.array([1.2, 0.7, 0.3, 0.0, -0.2, -0.6, 0.9, -1.1, -1.5, 0.1, -2.5, 0.5], np.float32)
    prompt, output = [1, 5, 6], [2, 2, 6]
    rows = [(index, seed) for index in range(len(MIXTURES)) for seed in range(50)]
    sampler = AnySampler(kind, len(logits), num_slots=len(rows))
    counts = np.zeros((len(MIXTURES), len(logits)))
    for step in range({"cpu": 400, "torch": 100}[kind]):
        places = [place for place, (index, _) in enumerate(rows) if step < 50 or not penalizes(MIXTURES[index])]
        for place in places:
            index, seed = rows[place]
            if step == 0 or penalizes(MIXTURES[index]):
                sampler.open(place, request(prompt, seed=1000 * step + seed, **MIXTURES[index]), output)
        for draw in sampler.sample(np.tile(logits, (len(places), 1)), places):
            counts[rows[draw.slot][0], draw.token] += 1
    for index, values in enumerate(MIXTURES):
        assert_drawn_from(counts[index], distribution_by_hand(logits, prompt, output, **values))


def penalizes(values: dict[str, Any]) -> bool:
    return any("penalty" in name for name in values)


def test_a_row_draws_from_its_distribution_at_every_step():
    """Chi-square over 60,000 draws of one seed."""
    logits = np.array([[0.4, 0.0, 1.0, -2.0, -0.3]], np.float32)
    sampler = AnySampler("cpu", 5)
    sampler.open(0, request(seed=11, temperature=0.9, top_p=0.97))
    counts = np.bincount([sampler.sample(logits, [0])[0].token for _ in range(60_000)], minlength=5)
    assert_drawn_from(counts, distribution_by_hand(logits[0], [], [], temperature=0.9, top_p=0.97))


def assert_drawn_from(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Chi-square test; its 1e-6 quantile is below mean + 7 standard deviations for these few degrees of freedom."""
    possible = probabilities > 0
    assert not counts[~possible].any()
    expected = probabilities[possible] * counts.sum()
    freedom = possible.sum() - 1
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    assert statistic <= freedom + 7 * math.sqrt(2 * freedom), (counts, expected)


def test_threads_draw_what_one_does():
    """From as many logits as are worth more than one thread."""
    logits = np.random.default_rng(1).normal(size=(32, 20_000)).astype(np.float32)
    thread_pool = KernelThreadPool(2)
    results = []
    for sampler in (CpuSampler(20_000, 32), CpuSampler(20_000, 32, num_threads=2, run=thread_pool.run)):
        for row in range(32):
            sampler.open(row, request(seed=row, top_p=0.9, num_logprobs=3))
        results.append([sampler.sample(logits, range(32)), sampler.sample(logits, range(31, -1, -1))])
    thread_pool.close()
    assert results[0] == results[1]
