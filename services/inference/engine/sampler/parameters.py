"""The sampling parameters of all slots, as arrays with an entry for each."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from services.inference.engine.sampler.kernels.arrays import NUM_UNIFORMS
from services.inference.engine.types import SequenceRequest
from shared.lm.sampling_params import TOP_P_SLACK

ALL = 1 << 31
"""A top_k that keeps all."""


class Parameters:
    """The sampling parameters of all slots, [num_slots] each.

    Attributes:
        inverse_temperature: 1 / temperature.
        greedy: 1 where the most likely id is taken.
        top_k: `ALL` where all are kept.
        top_p: 1 where all are kept, and else with the slack taken off.
        log_min_p: Natural logarithm of min_p; -inf where all are kept.
        repetition, presence, frequency: The penalties.
        penalized: 1 where one of them does something.
        biased: 1 where there is a logit_bias.
        num_logprobs: -1 where no log-probabilities are wanted.
        steps: Ids sampled so far.
        min_tokens: Steps before which no stop id is sampled.
        uniforms: [num_slots * NUM_UNIFORMS] random numbers; that of step s is at s modulo NUM_UNIFORMS.
    """

    def __init__(self, num_slots: int) -> None:
        self.inverse_temperature = np.ones(num_slots)
        self.greedy = np.zeros(num_slots, np.uint8)
        self.top_k = np.full(num_slots, ALL, np.int64)
        self.top_p = np.ones(num_slots)
        self.log_min_p = np.full(num_slots, -np.inf)
        self.repetition = np.ones(num_slots)
        self.presence = np.zeros(num_slots)
        self.frequency = np.zeros(num_slots)
        self.penalized = np.zeros(num_slots, np.uint8)
        self.biased = np.zeros(num_slots, np.uint8)
        self.num_logprobs = np.full(num_slots, -1, np.int64)
        self.steps = np.zeros(num_slots, np.int64)
        self.min_tokens = np.zeros(num_slots, np.int64)
        self.uniforms = np.zeros(num_slots * NUM_UNIFORMS)
        self._seeds = [0] * num_slots

    def open(self, slot: int, request: SequenceRequest, num_sampled: int) -> None:
        """Take a request's parameters."""
        params = request.params
        self.greedy[slot] = params.greedy
        self.inverse_temperature[slot] = 1.0 if params.greedy else 1 / params.temperature
        self.top_k[slot] = params.top_k if 0 < params.top_k < ALL else ALL
        self.top_p[slot] = 1.0 if params.top_p == 1 else params.top_p * (1 - TOP_P_SLACK)
        self.log_min_p[slot] = math.log(params.min_p) if params.min_p > 0 else -math.inf
        self.repetition[slot] = params.repetition_penalty
        self.presence[slot] = params.presence_penalty
        self.frequency[slot] = params.frequency_penalty
        self.penalized[slot] = (
            params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        )
        self.biased[slot] = bool(params.logit_bias)
        self.num_logprobs[slot] = -1 if request.num_logprobs is None else request.num_logprobs
        self.steps[slot] = request.num_given + num_sampled
        self.min_tokens[slot] = request.min_tokens
        self._seeds[slot] = params.seed
        self._fill_uniforms(slot)

    def refresh(self, slots: "np.ndarray[Any, np.dtype[np.int64]]") -> None:
        """Prepare random numbers for slots that have used theirs up."""
        for slot in slots[self.steps[slots] % NUM_UNIFORMS == 0].tolist():
            self._fill_uniforms(slot)

    def _fill_uniforms(self, slot: int) -> None:
        """Prepare those of the block of steps around `steps`; the numbers are those of `shared.lm.sampling.uniform`.

        A block of Philox is four words, of which a step uses the first.
        """
        first = int(self.steps[slot]) // NUM_UNIFORMS * NUM_UNIFORMS
        words = np.random.Philox(key=self._seeds[slot], counter=first).random_raw(4 * NUM_UNIFORMS)[::4]
        uniforms = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        self.uniforms[slot * NUM_UNIFORMS : (slot + 1) * NUM_UNIFORMS] = uniforms


def bias_of(request: SequenceRequest, vocab_size: int) -> tuple[list[int], list[float]]:
    """Return the ids of a request's logit_bias, and what is added to their logits.

    Raises:
        ValueError: An id that the model does not have.
    """
    for token, _ in request.params.logit_bias:
        if not 0 <= token < vocab_size:
            raise ValueError(f"logit_bias names id {token}, outside of the vocabulary of {vocab_size}")
    return [token for token, _ in request.params.logit_bias], [bias for _, bias in request.params.logit_bias]


def early_stops(request: SequenceRequest, vocab_size: int) -> list[int]:
    """Return the ids that must not be sampled before `min_tokens`."""
    if not request.min_tokens:
        return []
    return [token for token in request.stop_ids if 0 <= token < vocab_size]


def seen_counts(
    request: SequenceRequest, output: Sequence[int], vocab_size: int
) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """Return for each id of the vocabulary twice the times that it was sampled, plus 1 if it is in the prompt."""
    seen = np.zeros(vocab_size, np.int32)
    num_prompt_tokens = len(request.prompt_ids) - request.num_given
    seen[list(request.prompt_ids[:num_prompt_tokens])] = 1
    np.add.at(seen, [*request.prompt_ids[num_prompt_tokens:], *output], 2)
    return seen
