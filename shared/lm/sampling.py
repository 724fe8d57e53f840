"""Sampling the next token of each sequence of a batch.

The result depends on the sequence's own logits, parameters, seed and number of tokens so far, not on the rest of the
batch.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from shared.lm.sampling_params import LOWEST_LOGPROB, NO_TOKEN, TOP_P_SLACK, SamplingParams

_FIRST_LOOK = 256
_LARGEST = torch.finfo(torch.float32).max


@dataclass
class SampledRow:
    """The sampling parameters of one sequence, and its tokens so far.

    Attributes:
        params: Sampling parameters.
        prompt: The distinct ids of the prompt.
        output: How often each id was sampled.
        step: The number of sampled ids.
        min_tokens: Number of steps before which no id of `stop_ids` is sampled.
        stop_ids: Ids that end the sequence.
    """

    params: SamplingParams
    prompt: frozenset[int] = frozenset()
    output: Counter[int] = field(default_factory=Counter)
    step: int = 0
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()

    def append(self, token: int) -> None:
        """Add a sampled id to the output."""
        self.output[token] += 1
        self.step += 1


def sample(logits: Tensor, rows: Sequence[SampledRow], *, valid_tokens: Tensor | None = None) -> list[int]:
    """Sample the next id of each sequence; the caller appends it to the row.

    In this order: ids that must not be sampled are masked, including `stop_ids` before `min_tokens`; logit_bias is
    added; the repetition, presence and frequency penalties apply; then greedy takes the most likely id, or temperature,
    top_k, top_p and min_p apply, each to the renormalized result of the one before, and an id is sampled. Bias and
    min_tokens come before the penalties, since the bias is on the model's own logits; the rest is in the order of
    transformers' `generate`. Among equally likely tokens the lower ids are kept, and greedy takes the lowest.

    Args:
        logits: [B, vocab_size], on any device, of any float dtype, converted to float32. Bias and penalties are rounded
            to float32 too, so that rounding does not decide whether two scores are equal; all else is float64.
        rows: B rows.
        valid_tokens: bool [vocab_size], False for ids that must never be sampled (padding of the embedding).

    Returns:
        B ids; `NO_TOKEN` for a row whose logits hold NaN or +inf, or no finite value of an id that may be sampled.
    """
    scores = _on_cpu(logits, valid_tokens)
    # The greatest logit of a row is NaN, +inf or -inf exactly if the row cannot be used.
    usable = scores.amax(-1).isfinite()
    return [
        _sample_one(row_scores, row) if is_usable else NO_TOKEN
        for row_scores, row, is_usable in zip(scores, rows, usable.tolist(), strict=True)
    ]


def _on_cpu(logits: Tensor, valid_tokens: Tensor | None) -> Tensor:
    """Return the logits as float32, with invalid ids masked.

    On the CPU: a GPU has no deterministic cumulative sum in float64, and raises with
    `torch.use_deterministic_algorithms`; Apple's GPUs have no float64 at all.
    """
    scores = logits.detach().float().cpu()
    return scores if valid_tokens is None else scores.masked_fill(~valid_tokens.cpu(), -torch.inf)


def _sample_one(scores: Tensor, row: SampledRow) -> int:
    scores = penalize(_bias(scores, row), row)
    if not scores.max().isfinite():
        return NO_TOKEN
    if row.params.greedy:
        return int(scores.argmax())
    cumulative = distribution(scores, row.params).cumsum(-1)
    total = cumulative[-1]
    target = torch.minimum(uniform(row.params.seed, row.step) * total, total.nextafter(torch.zeros_like(total)))
    return int(torch.searchsorted(cumulative, target, right=True))


def _bias(scores: Tensor, row: SampledRow) -> Tensor:
    """Add `logit_bias` to one row's logits [vocab_size], and mask ids that would end the sequence too early."""
    if row.params.logit_bias:
        ids, values = zip(*row.params.logit_bias, strict=True)
        scores = scores.index_add(0, _ids(ids, scores), torch.tensor(values, dtype=scores.dtype, device=scores.device))
    if row.step < row.min_tokens and row.stop_ids:
        scores = scores.index_fill(0, _ids(row.stop_ids, scores), -torch.inf)
    return scores


def penalize(scores: Tensor, row: SampledRow) -> Tensor:
    """Apply the three penalties to one row's logits [vocab_size]; computed in float64, returned in the given dtype."""
    params, values = row.params, scores.double()
    if params.repetition_penalty != 1:
        seen = _ids(row.prompt | row.output.keys(), scores)
        before = values[seen]
        after = torch.where(before > 0, before / params.repetition_penalty, before * params.repetition_penalty)
        values = values.index_copy(0, seen, after)
    if row.output and (params.presence_penalty or params.frequency_penalty):
        counts = torch.tensor(list(row.output.values()), dtype=values.dtype, device=scores.device)
        penalties = -params.presence_penalty - params.frequency_penalty * counts
        values = values.index_add(0, _ids(row.output, scores), penalties)
    # A tiny penalty must not divide a logit to infinity, nor a large one multiply it to infinity.
    values = torch.where(scores.isfinite(), values.clamp(-_LARGEST, _LARGEST), values)
    return values.to(scores.dtype)


def _ids(ids: Collection[int], scores: Tensor) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.int64, device=scores.device)


def distribution(scores: Tensor, params: SamplingParams) -> Tensor:
    """Return the probability of each token, from the penalized logits [vocab_size] of one row.

    In float64, relative to the probability of the most likely token: they do not sum to 1.
    """
    scaled = (scores.double() - scores.max().double()) * (1 / params.temperature)
    weights = scaled.exp()
    count = _num_likeliest(scores, weights, params)
    if count < len(scores):
        weights = weights.where(_likeliest(scores, count), 0.0)
    if params.min_p > 0:
        weights = weights.where(scaled >= math.log(params.min_p), 0.0)
    return weights


def _num_likeliest(scores: Tensor, weights: Tensor, params: SamplingParams) -> int:
    """Return how many of the most likely tokens top_k and top_p keep; at least 1."""
    top_k = params.top_k if 0 < params.top_k < len(scores) else len(scores)
    if params.top_p == 1:
        return top_k
    total = weights.sum() if top_k == len(scores) else weights[scores.topk(top_k).indices].sum()
    wanted = params.top_p * total * (1 - TOP_P_SLACK)
    # Nearly always the most likely few have the wanted mass, and sorting the whole vocabulary takes far longer.
    looked_at = min(_FIRST_LOOK, top_k)
    while True:
        cumulative = weights[scores.topk(looked_at).indices].cumsum(-1)
        missing = int((cumulative < wanted).sum())
        if missing < looked_at or looked_at == top_k:
            return min(missing + 1, top_k)
        looked_at = min(8 * looked_at, top_k)


def _likeliest(scores: Tensor, count: int) -> Tensor:
    """Return a mask of the `count` most likely tokens; of equally likely ones, those with lower ids."""
    cut = scores.topk(count).values[-1]
    above, equal = scores > cut, scores == cut
    return above | (equal & (equal.cumsum(-1) <= count - above.sum()))


def uniform(seed: int, step: int) -> float:
    """Return a number in [0, 1) that is a pure function of seed and step (Philox, Salmon et al. 2011)."""
    bits = int(np.random.Philox(key=seed, counter=step).random_raw())
    return math.ldexp(bits >> 11, -53)


def top_logprobs(
    logits: Tensor, tokens: Sequence[int], count: int, *, valid_tokens: Tensor | None = None
) -> list[tuple[float, list[tuple[int, float]]]]:
    """Return log-probabilities under the model's distribution over the valid ids, before any sampling parameter.

    Args:
        logits: [B, vocab_size].
        tokens: The sampled id of each row.
        count: Number of most likely ids to return, or all possible ids if these are fewer.
        valid_tokens: bool [vocab_size], as for `sample`; probabilities of valid ids sum to 1.

    Returns:
        For each row, the log-probability of the sampled id, and `count` pairs of id and log-probability, most likely
        first and of equally likely ones the lower id first, without impossible ids. All are finite, see
        `LOWEST_LOGPROB`.
    """
    scores = _on_cpu(logits, valid_tokens)
    logprobs = scores.double().log_softmax(-1).clamp(min=LOWEST_LOGPROB)
    ids = scores.sort(descending=True, stable=True).indices[:, :count]
    top_ids = [row_ids[row[row_ids] > -torch.inf] for row, row_ids in zip(scores, ids, strict=True)]
    return [
        (float(row[token]), list(zip(row_ids.tolist(), row[row_ids].tolist(), strict=True)))
        for row, token, row_ids in zip(logprobs, tokens, top_ids, strict=True)
    ]
