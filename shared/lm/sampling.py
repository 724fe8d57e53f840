"""Drawing the next token of each row of a batch.

A row's draw depends on its own logits, parameters, seed and number of tokens so far, and on nothing else in the batch.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from shared.lm.sampling_params import NO_TOKEN, SamplingParams

_LOWEST_LOGPROB = -9999.0
_FIRST_LOOK = 256


@dataclass
class SampledRow:
    """One sequence that is being drawn: its parameters, and what it holds so far.

    Attributes:
        params: How its tokens are drawn.
        prompt: The distinct ids of the prompt.
        output: How often each id was drawn.
        step: How many ids were drawn.
    """

    params: SamplingParams
    prompt: frozenset[int] = frozenset()
    output: Counter[int] = field(default_factory=Counter)
    step: int = 0

    def append(self, token: int) -> None:
        """Take a drawn id into account for the next one."""
        self.output[token] += 1
        self.step += 1


def sample(logits: Tensor, rows: Sequence[SampledRow], *, valid_tokens: Tensor | None = None) -> list[int]:
    """Draw each row's next id; the caller appends them to the rows.

    Penalties come first, then temperature, top_k, top_p and min_p, each on the renormalised result of the one before,
    as in transformers' `generate`. Among equally likely tokens the lower ids are kept, and greedy takes the lowest.

    Args:
        logits: [B, vocab_size], any float dtype; computed in float64.
        rows: B rows.
        valid_tokens: bool [vocab_size], False for ids that must never be drawn (padding of the embedding).

    Returns:
        B ids; `NO_TOKEN` for a row whose logits hold NaN or +inf, or nothing finite.
    """
    scores = logits.detach().double()
    if valid_tokens is not None:
        scores = _forbid_invalid(scores, valid_tokens)
    # The greatest logit of a row is NaN, +inf or -inf exactly if the row cannot be used.
    usable = scores.amax(-1).isfinite()
    return [
        _draw(row_scores, row) if is_usable else NO_TOKEN
        for row_scores, row, is_usable in zip(scores, rows, usable.tolist(), strict=True)
    ]


def _forbid_invalid(scores: Tensor, valid_tokens: Tensor) -> Tensor:
    return scores.masked_fill(~valid_tokens.to(scores.device), -torch.inf)


def _draw(scores: Tensor, row: SampledRow) -> int:
    scores = penalize(scores, row)
    if row.params.greedy:
        return int(scores.argmax())
    cumulative = distribution(scores, row.params).cumsum(-1)
    total = cumulative[-1]
    target = torch.minimum(uniform(row.params.seed, row.step) * total, total.nextafter(torch.zeros_like(total)))
    return int(torch.searchsorted(cumulative, target, right=True))


def penalize(scores: Tensor, row: SampledRow) -> Tensor:
    """Apply the three penalties to one row's logits [vocab_size]."""
    params = row.params
    if params.repetition_penalty != 1:
        seen = torch.tensor(sorted(row.prompt | row.output.keys()), dtype=torch.int64, device=scores.device)
        values = scores[seen]
        penalty = params.repetition_penalty
        penalized = torch.where(values > 0, values / penalty, values * penalty)
        # A tiny penalty must not divide a logit to infinity.
        scores = scores.index_copy(0, seen, penalized.clamp(max=torch.finfo(scores.dtype).max))
    if row.output and (params.presence_penalty or params.frequency_penalty):
        ids = torch.tensor(list(row.output), dtype=torch.int64, device=scores.device)
        counts = torch.tensor(list(row.output.values()), dtype=scores.dtype, device=scores.device)
        scores = scores.index_add(0, ids, -params.presence_penalty - params.frequency_penalty * counts)
    return scores


def distribution(scores: Tensor, params: SamplingParams) -> Tensor:
    """Return the probabilities that tokens are drawn by, from one row's penalized logits [vocab_size] in float64.

    They are not renormalised: what the filters remove is missing from their sum.
    """
    probabilities = ((scores - scores.max()) / params.temperature).softmax(-1)
    count = _num_likeliest(probabilities, params)
    if count < len(probabilities):
        probabilities = _keep_likeliest(probabilities, count)
    return probabilities.where(probabilities >= params.min_p * probabilities.max(), 0.0)


def _num_likeliest(probabilities: Tensor, params: SamplingParams) -> int:
    """Return how many of the likeliest tokens top_k and top_p keep; at least 1."""
    top_k = params.top_k if 0 < params.top_k < len(probabilities) else len(probabilities)
    if params.top_p == 1:
        return top_k
    total = probabilities.sum() if top_k == len(probabilities) else probabilities.topk(top_k).values.sum()
    # The likeliest few nearly always hold the mass that is wanted, and sorting a whole vocabulary takes far longer.
    looked_at = min(_FIRST_LOOK, top_k)
    while True:
        cumulative = probabilities.topk(looked_at).values.cumsum(-1)
        missing = int((cumulative < params.top_p * total).sum())
        if missing < looked_at or looked_at == top_k:
            return min(missing + 1, top_k)
        looked_at = min(8 * looked_at, top_k)


def _keep_likeliest(probabilities: Tensor, count: int) -> Tensor:
    """Zero all but `count` probabilities; among equal ones the lower ids stay."""
    cut = probabilities.topk(count).values[-1]
    above, equal = probabilities > cut, probabilities == cut
    kept = above | (equal & (equal.cumsum(-1) <= count - above.sum()))
    return probabilities.where(kept, 0.0)


def uniform(seed: int, step: int) -> float:
    """Return a number in [0, 1) that is a pure function of seed and step (Philox, Salmon et al. 2011)."""
    bits = int(np.random.Philox(key=seed, counter=step).random_raw())
    return math.ldexp(bits >> 11, -53)


def top_logprobs(
    logits: Tensor, tokens: Sequence[int], count: int, *, valid_tokens: Tensor | None = None
) -> list[tuple[float, list[tuple[int, float]]]]:
    """Return log-probabilities under the model's own distribution, before any sampling parameter.

    Args:
        logits: [B, vocab_size].
        tokens: The drawn id of each row.
        count: How many of the likeliest ids to return; at most all valid ones are.
        valid_tokens: bool [vocab_size], as for `sample`; the others have no part in the distribution.

    Returns:
        For each row, the drawn id's log-probability, and `count` pairs of id and log-probability, likeliest first. All
        are finite: the lowest is -9999, as OpenAI's API has it.
    """
    scores, num_valid = logits.detach().double(), logits.shape[-1]
    if valid_tokens is not None:
        scores, num_valid = _forbid_invalid(scores, valid_tokens), int(valid_tokens.sum())
    scores = scores.log_softmax(-1).clamp(min=_LOWEST_LOGPROB)
    values, ids = scores.topk(min(count, num_valid))
    return [
        (float(row[token]), list(zip(row_ids, row_values, strict=True)))
        for row, token, row_ids, row_values in zip(scores, tokens, ids.tolist(), values.tolist(), strict=True)
    ]
