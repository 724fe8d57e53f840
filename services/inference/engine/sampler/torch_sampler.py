"""The sampler in torch's operations: the same tokens on any device; only reading the results waits for the device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.inference.engine.errors import NO_DISTRIBUTION
from services.inference.engine.sampler.kernels.arrays import NUM_UNIFORMS
from services.inference.engine.sampler.parameters import Parameters, bias_of, early_stops, seen_counts
from services.inference.engine.types import SampledToken, SequenceRequest, TokenLogprobs
from shared.lm.sampling_params import LOWEST_LOGPROB, NO_TOKEN

_LARGEST = torch.finfo(torch.float32).max
_FIELDS = (
    "inverse_temperature", "greedy", "top_k", "top_p", "log_min_p", "repetition", "presence", "frequency",
)  # fmt: skip
_SLOT, _UNIFORM, _EARLY, _NUM_OWN = 0, 1, 2, 3


class TorchSampler:
    """Samples the tokens of `shared.lm.sample` (see `Sampler`).

    Every slot goes through every filter whether it uses it or not, in one sort of the vocabulary, so that a step costs
    the same for all parameters, and can be captured as a graph.

    Args:
        vocab_size: Ids that the logits are of.
        num_slots: Slots that may be open at the same time.
        device: Where the logits are.
        valid_tokens: bool [vocab_size], False for ids that must never be sampled; None allows all.
    """

    def __init__(
        self, vocab_size: int, num_slots: int, device: torch.device | str = "cpu", *, valid_tokens: Tensor | None = None
    ) -> None:
        self._size = vocab_size
        self._num_slots = num_slots
        self._device = torch.device(device)
        valid = torch.ones(vocab_size, dtype=torch.bool) if valid_tokens is None else valid_tokens
        self._valid = valid.to(device)
        self._ids = torch.arange(vocab_size, device=device)
        self._parameters = Parameters(num_slots)
        # One more than there are slots, for the padding of a batch of fixed size.
        shape = (num_slots + 1, vocab_size)
        self._bias = torch.zeros(shape, device=device)
        self._seen = torch.zeros(shape, dtype=torch.int32, device=device)
        self._stops = torch.zeros(shape, dtype=torch.bool, device=device)

    @torch.inference_mode()
    def open(self, slot: int, request: SequenceRequest, output: Sequence[int] = ()) -> None:
        """See `Sampler.open`.

        Raises:
            ValueError: logit_bias names an id outside of the vocabulary.
        """
        ids, bias = bias_of(request, self._size)
        self._parameters.open(slot, request, len(output))
        self._bias[slot] = 0
        if ids:
            indices = torch.tensor(ids, device=self._device)
            self._bias[slot].index_add_(0, indices, torch.tensor(bias, dtype=torch.float32, device=self._device))
        self._seen[slot] = torch.from_numpy(seen_counts(request, output, self._size)).to(self._device)
        self._stops[slot] = False
        stops = early_stops(request, self._size)
        if stops:
            self._stops[slot, torch.tensor(stops, device=self._device)] = True

    def close(self, slot: int) -> None:
        """See `Sampler.close`; the state is overwritten when the slot is opened again."""

    @torch.inference_mode()
    def sample(self, logits: Tensor, slots: Sequence[int]) -> list[SampledToken]:
        """See `Sampler.sample`; the logits are float32 [rows, vocab_size]."""
        tokens = self.sample_on_device(logits, torch.from_numpy(self.controls(slots, len(slots))).to(self._device))
        return self.collect(logits, tokens, slots)

    def controls(self, slots: Sequence[int], size: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Return what `sample_on_device` needs of the slots beside their logits: [size, any], padded with empty ones.

        One array, so that it goes to the device in one copy; float64 holds all of its numbers exactly.
        """
        parameters, index = self._parameters, np.array(slots, np.int64)
        controls = np.ones((size, _NUM_OWN + len(_FIELDS)))
        controls[:, _SLOT] = self._num_slots
        used = controls[: len(slots)]
        steps = parameters.steps[index]
        used[:, _SLOT] = index
        used[:, _UNIFORM] = parameters.uniforms[index * NUM_UNIFORMS + steps % NUM_UNIFORMS]
        used[:, _EARLY] = steps < parameters.min_tokens[index]
        for column, name in enumerate(_FIELDS, _NUM_OWN):
            used[:, column] = getattr(parameters, name)[index]
        return controls

    def sample_on_device(self, logits: Tensor, controls: Tensor) -> Tensor:
        """Sample without waiting for the device, and count what was sampled.

        Args:
            logits: float32 [B, vocab_size].
            controls: float64 [B, any], from `controls`; further columns are not looked at.

        Returns:
            int64 [B]; `NO_TOKEN` where there is no distribution.
        """
        slots = controls[:, _SLOT].long()
        column = {name: controls[:, index, None] for index, name in enumerate(_FIELDS, _NUM_OWN)}
        scores = logits.where(self._valid, -torch.inf)
        usable = scores.amax(-1).isfinite()
        scores = scores + self._bias[slots]
        scores = scores.masked_fill((controls[:, _EARLY, None] > 0) & self._stops[slots], -torch.inf)
        scores = _penalized(scores, self._seen[slots], column)
        peak = scores.amax(-1, keepdim=True)
        usable &= peak.squeeze(-1).isfinite()
        weights = _weights(scores, peak, column)
        cumulative = weights.cumsum(-1)
        total = cumulative[:, -1:]
        target = torch.minimum(controls[:, _UNIFORM, None] * total, total.nextafter(torch.zeros_like(total)))
        # A parallel sum may go down by a rounding: only ids that have a weight are looked at.
        candidates = torch.where(column["greedy"] > 0, scores == peak, (cumulative > target) & (weights > 0))
        tokens = self._ids.where(candidates, self._size).amin(-1)
        tokens = tokens.where(usable & (tokens < self._size), NO_TOKEN)
        counted = (2 * (tokens >= 0)).int()
        self._seen.view(-1).index_add_(0, slots * self._size + tokens.clamp(min=0), counted)
        return tokens

    def collect(self, logits: Tensor, tokens: Tensor, slots: Sequence[int]) -> list[SampledToken]:
        """Wait for the tokens of the first rows of a batch; the log-probabilities come in the same copy."""
        count = len(slots)
        opened = np.array(slots, np.int64)
        num_logprobs = self._parameters.num_logprobs[opened].tolist()
        wanted = [index for index, number in enumerate(num_logprobs) if number >= 0]
        scored: list[TokenLogprobs] = []
        if wanted:
            chosen = torch.tensor(wanted, device=self._device)
            most = max(num_logprobs)
            packed = self._score_on_device(logits[chosen], tokens[chosen].clamp(min=0), most)
            packed = torch.cat((tokens[:count].double(), packed.flatten())).cpu()
            sampled = packed[:count].long().tolist()
            scored = _unpack(packed[count:].view(len(wanted), -1))
        else:
            sampled = tokens[:count].tolist()
        self._parameters.steps[opened] += np.array(sampled) != NO_TOKEN
        self._parameters.refresh(opened)
        logprobs = dict(zip(wanted, scored, strict=True))
        return [
            SampledToken(slot, token, _cut(logprobs.get(index), num_logprobs[index]) if token != NO_TOKEN else None)
            for index, (slot, token) in enumerate(zip(slots, sampled, strict=True))
        ]

    @torch.inference_mode()
    def score(self, logits: Tensor, targets: Sequence[int], num_logprobs: int) -> list[TokenLogprobs]:
        """See `Sampler.score`; the logits are float32 [targets, vocab_size]."""
        indices = torch.tensor(targets, dtype=torch.int64, device=self._device)
        packed = self._score_on_device(logits, indices, num_logprobs).cpu()
        if packed.isnan().any():
            raise ValueError(NO_DISTRIBUTION)
        return _unpack(packed)

    def _score_on_device(self, logits: Tensor, targets: Tensor, num_logprobs: int) -> Tensor:
        """Return, in float64 for each row, the target's log-probability, then those of the likeliest ids, then the ids.

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


def _weights(scores: Tensor, peak: Tensor, column: dict[str, Tensor]) -> Tensor:
    """Return how likely each id is sampled, in units of the likeliest one's probability: float64 [B, vocab_size]."""
    scaled = (scores.double() - peak.double()) * column["inverse_temperature"]
    weights = scaled.exp()
    order = scores.sort(stable=True, descending=True).indices
    rank = torch.arange(scores.shape[-1], device=scores.device)
    likeliest = weights.gather(1, order).where(rank < column["top_k"], 0.0)
    mass = likeliest.cumsum(-1)
    missing = (mass < column["top_p"] * likeliest.sum(-1, keepdim=True)).sum(-1, keepdim=True)
    count = torch.where(column["top_p"] < 1, torch.minimum(missing + 1, column["top_k"]), column["top_k"])
    kept = torch.zeros_like(order, dtype=torch.bool).scatter(1, order, rank < count)
    return weights.where(kept & (scaled >= column["log_min_p"]), 0.0)


def _unpack(packed: Tensor) -> list[TokenLogprobs]:
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
