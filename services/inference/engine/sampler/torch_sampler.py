"""The sampler in torch's operations: the same tokens on any device; only reading the results waits for the device."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from services.inference.engine.errors import NO_DISTRIBUTION
from services.inference.engine.sampler.kernels.arrays import NUM_UNIFORMS
from services.inference.engine.sampler.parameters import ALL, Parameters, bias_of, early_stops, seen_counts
from services.inference.engine.sampler.transfers import copy_to_device, to_device, to_host
from services.inference.engine.sampler.triton_draw import triton_draw
from services.inference.engine.types import SampledToken, SequenceRequest, TokenLogprobs
from shared.lm.sampling_params import LOWEST_LOGPROB, NO_TOKEN

_LARGEST = torch.finfo(torch.float32).max
_FIELDS = (
    "inverse_temperature", "greedy", "log_min_p", "biased", "top_k", "top_p", "repetition", "presence", "frequency",
)  # fmt: skip
_SLOT, _UNIFORM, _EARLY, _NUM_OWN = 0, 1, 2, 3


class Plan(NamedTuple):
    """What the rows of a batch ask for. A row gets the same token from every plan that covers what it asks for.

    Attributes:
        draws: Whether rows are sampled from a distribution, and not all greedily.
        has_state: Whether rows have a bias, penalties, or ids that may not come yet.
        num_filtered: So many rows at the beginning may have top_k or top_p, for which their scores are sorted.
    """

    draws: bool
    has_state: bool
    num_filtered: int

    def covers(self, other: "Plan") -> bool:
        """Whether it does all that the other one does."""
        return all(own >= asked for own, asked in zip(self, other, strict=True))


class Batch:
    """The slots of a batch, in the order in which they are sampled: those first whose scores are sorted.

    Attributes:
        order: For each row, which of the given slots it is.
        slots: In that order.
        asked: What they ask for.
    """

    def __init__(self, parameters: Parameters, slots: Sequence[int]) -> None:
        given = np.array(slots, np.int64)
        greedy = parameters.greedy[given] > 0
        is_filtered = ~greedy & ((parameters.top_k[given] != ALL) | (parameters.top_p[given] < 1))
        self.order = np.argsort(~is_filtered, kind="stable")
        self.slots = given[self.order]
        self._is_early = parameters.steps[self.slots] < parameters.min_tokens[self.slots]
        has_state = parameters.penalized[given].any() or parameters.biased[given].any() or self._is_early.any()
        self.asked = Plan(not greedy.all(), bool(has_state), int(is_filtered.sum()))
        self._parameters = parameters

    def controls(self, size: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Return what `sample_on_device` needs of the rows beside their logits: [size, any], padded with empty ones.

        One array, so that it goes to the device in one copy; float64 holds all of its numbers exactly.
        """
        parameters = self._parameters
        controls = np.ones((size, _NUM_OWN + len(_FIELDS)))
        controls[:, _SLOT] = len(parameters.steps)
        used = controls[: len(self.slots)]
        used[:, _SLOT] = self.slots
        used[:, _UNIFORM] = parameters.uniforms[self.slots * NUM_UNIFORMS + parameters.steps[self.slots] % NUM_UNIFORMS]
        used[:, _EARLY] = self._is_early
        for column, name in enumerate(_FIELDS, _NUM_OWN):
            used[:, column] = getattr(parameters, name)[self.slots]
        return controls


class TorchSampler:
    """Samples the tokens of `shared.lm.sample` (see `Sampler`).

    Args:
        vocab_size: Ids that the logits are of.
        num_slots: Slots that may be open at the same time.
        device: Where the logits are.
        valid_tokens: bool [vocab_size], False for ids that must never be sampled; None allows all.
        has_kernel: Draw by the kernel of `draw_kernel`, whose rows do what they ask for alone.

    Attributes:
        device: Where the logits are.
        plans: Those that steps are captured for, the cheapest first; the last covers all.
    """

    def __init__(
        self,
        vocab_size: int,
        num_slots: int,
        device: torch.device | str = "cpu",
        *,
        valid_tokens: Tensor | None = None,
        has_kernel: bool = False,
    ) -> None:
        self._size = vocab_size
        self.device = torch.device(device)
        valid = torch.ones(vocab_size, dtype=torch.bool) if valid_tokens is None else valid_tokens
        self._valid = valid.to(device)
        self._ids = torch.arange(vocab_size, device=device)
        self._parameters = Parameters(num_slots)
        # One more than there are slots, for the padding of a batch of fixed size. A slot's row holds what an earlier
        # request left where its own has no need of it.
        shape = (num_slots + 1, vocab_size)
        self._bias = torch.zeros(shape, device=device)
        self._seen = torch.zeros(shape, dtype=torch.int32, device=device)
        self._stops = torch.zeros(shape, dtype=torch.bool, device=device)
        plans = [Plan(False, False, 0), Plan(True, False, 0), Plan(True, True, 0)]
        self.plans = plans + [Plan(True, True, size) for size in sizes_up_to(num_slots)]
        if has_kernel:
            self.plans = self.plans[-1:]
        self._has_kernel = has_kernel

    @torch.inference_mode()
    def open(self, slot: int, request: SequenceRequest, output: Sequence[int] = ()) -> None:
        """See `Sampler.open`.

        Raises:
            ValueError: logit_bias names an id outside of the vocabulary.
        """
        ids, values = bias_of(request, self._size)
        self._parameters.open(slot, request, len(output))
        if ids:
            bias = np.zeros(self._size, np.float32)
            np.add.at(bias, ids, np.array(values, np.float32))
            copy_to_device(bias, self._bias[slot])
        if self._parameters.penalized[slot]:
            copy_to_device(seen_counts(request, output, self._size), self._seen[slot])
        if request.min_tokens:
            stops = np.zeros(self._size, np.bool_)
            stops[early_stops(request, self._size)] = True
            copy_to_device(stops, self._stops[slot])

    def close(self, slot: int) -> None:
        """See `Sampler.close`; the state is overwritten when the slot is opened again."""

    @torch.inference_mode()
    def sample(self, logits: Tensor, slots: Sequence[int]) -> list[SampledToken]:
        """See `Sampler.sample`; the logits are float32 [rows, vocab_size]."""
        batch = self.batch(slots)
        ordered = logits[to_device(batch.order, self.device)]
        controls = to_device(batch.controls(len(slots)), self.device)
        return self.collect(ordered, self.sample_on_device(ordered, controls, self.plan_of(batch)), batch)

    def batch(self, slots: Sequence[int]) -> Batch:
        """Prepare to sample for distinct open slots."""
        return Batch(self._parameters, slots)

    def plan_of(self, batch: Batch) -> Plan:
        """The cheapest plan for a batch."""
        return next(plan for plan in self.plans if plan.covers(batch.asked))

    def sample_on_device(self, logits: Tensor, controls: Tensor, plan: Plan) -> Tensor:
        """Sample without waiting for the device, and count what was sampled where the plan has state.

        Args:
            logits: float32 [B, vocab_size], in the order of a `Batch`.
            controls: float64 [B, any], from `Batch.controls`; further columns are not looked at.
            plan: One that covers the batch.

        Returns:
            int64 [B]; `NO_TOKEN` where there is no distribution.
        """
        if self._has_kernel:
            state = (self._valid, self._bias, self._seen, self._stops)
            drawn: Tensor = triton_draw(logits, controls, *state)
            return drawn
        column = {name: controls[:, index, None] for index, name in enumerate(_FIELDS, _NUM_OWN)}
        scores = logits.where(self._valid, -torch.inf)
        peak, likeliest = scores.max(-1, keepdim=True)  # of equal ones the lowest id
        usable = peak.abs() <= _LARGEST
        if plan.has_state:
            slots = controls[:, _SLOT].long()
            scores = torch.where(column["biased"] > 0, scores + self._bias[slots], scores)
            scores = scores.masked_fill((controls[:, _EARLY, None] > 0) & self._stops[slots], -torch.inf)
            scores = _penalized(scores, self._seen[slots], column)
            peak, likeliest = scores.max(-1, keepdim=True)
            usable &= peak.abs() <= _LARGEST
        tokens = likeliest
        if plan.draws:
            weights = _weights(scores, peak, column, plan.num_filtered)
            cumulative = weights.cumsum(-1)
            total = cumulative[:, -1:]
            target = torch.minimum(controls[:, _UNIFORM, None] * total, total.nextafter(torch.zeros_like(total)))
            # A parallel sum may go down by a rounding: only ids that have a weight are looked at.
            candidates = (cumulative > target) & (weights > 0)
            drawn = self._ids.where(candidates, self._size).amin(-1, keepdim=True)
            tokens = torch.where(column["greedy"] > 0, likeliest, drawn)
            usable &= tokens < self._size
        tokens = tokens.where(usable, NO_TOKEN).squeeze(-1)
        if plan.has_state:
            counted = (2 * (tokens >= 0)).int()
            self._seen.view(-1).index_add_(0, slots * self._size + tokens.clamp(min=0), counted)
        return tokens

    def collect(self, logits: Tensor, tokens: Tensor, batch: Batch) -> list[SampledToken]:
        """Wait for the tokens of a batch's rows, and return them in the order of the slots that it was made of.

        The log-probabilities come in the same copy.
        """
        slots, count = batch.slots, len(batch.slots)
        num_logprobs = self._parameters.num_logprobs[slots]
        wanted = np.flatnonzero(num_logprobs >= 0)
        scored: list[TokenLogprobs] = []
        if len(wanted):
            chosen = to_device(wanted, self.device)
            scores = self._score_on_device(logits[chosen], tokens[chosen].clamp(min=0), int(num_logprobs.max()))
            packed = to_host(torch.cat((tokens[:count].double(), scores.flatten())))
            sampled = packed[:count].astype(np.int64)
            scored = _unpack(packed[count:].reshape(len(wanted), -1))
        else:
            sampled = to_host(tokens[:count])
        self._parameters.steps[slots] += sampled != NO_TOKEN
        self._parameters.refresh(slots)
        logprobs = dict(zip(wanted.tolist(), scored, strict=True))
        rows = zip(slots.tolist(), sampled.tolist(), num_logprobs.tolist(), strict=True)
        in_order = [
            SampledToken(slot, token, _cut(logprobs.get(row), number) if token != NO_TOKEN else None)
            for row, (slot, token, number) in enumerate(rows)
        ]
        return [in_order[row] for row in np.argsort(batch.order).tolist()]

    @torch.inference_mode()
    def score(self, logits: Tensor, targets: Sequence[int], num_logprobs: int) -> list[TokenLogprobs]:
        """See `Sampler.score`; the logits are float32 [targets, vocab_size]."""
        indices = to_device(np.array(targets, np.int64), self.device)
        packed = to_host(self._score_on_device(logits, indices, num_logprobs))
        if np.isnan(packed).any():
            raise ValueError(NO_DISTRIBUTION)
        return _unpack(packed)

    def _score_on_device(self, logits: Tensor, targets: Tensor, num_logprobs: int) -> Tensor:
        """Return, in float64 for each row, the log-probabilities of the target and the most likely ids, then these ids.

        Ids are -1 where no more are possible; log-probabilities of a row without a distribution are NaN.
        """
        scores = logits.where(self._valid, -torch.inf)
        logprobs = scores.double().log_softmax(-1)
        logprobs = logprobs.where(scores.amax(-1, keepdim=True).isfinite(), torch.nan)
        ids = scores.sort(stable=True, descending=True).indices[:, :num_logprobs]
        values = logprobs.gather(1, ids)
        ids = ids.where(values > -torch.inf, -1)
        values = torch.cat((logprobs.gather(1, targets[:, None]), values), 1).clamp(min=LOWEST_LOGPROB)
        return torch.cat((values, ids.double()), 1)


def _penalized(scores: Tensor, seen: Tensor, column: dict[str, Tensor]) -> Tensor:
    values = scores.double()
    repeated = torch.where(values > 0, values / column["repetition"], values * column["repetition"])
    values = repeated.where(seen > 0, values)
    times = seen >> 1
    values = torch.where(times > 0, values + (-column["presence"] - column["frequency"] * times), values)
    return values.clamp(-_LARGEST, _LARGEST).float().where(scores.isfinite(), scores)


def _weights(scores: Tensor, peak: Tensor, column: dict[str, Tensor], num_filtered: int) -> Tensor:
    """Return how likely each id is sampled, in units of the most likely one's probability: float64 [B, vocab_size]."""
    scaled = (scores.double() - peak.double()) * column["inverse_temperature"]
    weights = scaled.exp().where(scaled >= column["log_min_p"], 0.0)
    if not num_filtered:
        return weights
    rows = slice(num_filtered)
    filtered = weights[rows].where(
        _filter(scores[rows], scaled[rows].exp(), column["top_k"][rows], column["top_p"][rows]), 0.0
    )
    return torch.cat((filtered, weights[num_filtered:]))


def _filter(scores: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return which ids top_k and top_p keep: bool [B, vocab_size]; of equally likely ones, those with lower ids."""
    order = scores.sort(stable=True, descending=True).indices
    rank = torch.arange(scores.shape[-1], device=scores.device)
    likeliest = weights.gather(1, order).where(rank < top_k, 0.0)
    mass = likeliest.cumsum(-1)
    missing = (mass < top_p * likeliest.sum(-1, keepdim=True)).sum(-1, keepdim=True)
    count = torch.where(top_p < 1, torch.minimum(missing + 1, top_k), top_k)
    return torch.zeros_like(order, dtype=torch.bool).scatter(1, order, rank < count)


def sizes_up_to(limit: int, first: int = 1) -> list[int]:
    """`first`, then four times as much each time, and `limit` at the end."""
    sizes = []
    while first < limit:
        sizes.append(first)
        first *= 4
    return [*sizes, limit]


def _unpack(packed: "np.ndarray[Any, np.dtype[np.float64]]") -> list[TokenLogprobs]:
    num_top = packed.shape[1] // 2
    return [
        TokenLogprobs(
            row[0],
            tuple(
                (int(token), value)
                for token, value in zip(row[1 + num_top :], row[1 : 1 + num_top], strict=True)
                if token >= 0
            ),
        )
        for row in packed.tolist()
    ]


def _cut(logprobs: TokenLogprobs | None, count: int) -> TokenLogprobs | None:
    return None if logprobs is None else TokenLogprobs(logprobs.chosen, logprobs.top[:count])
