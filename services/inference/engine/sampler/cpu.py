"""The sampler for models on CPU: compiled, without sorting a vocabulary, rows split over threads."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.inference.engine.errors import NO_DISTRIBUTION
from services.inference.engine.sampler.kernels import sampling
from services.inference.engine.sampler.kernels.arrays import (
    BLOCK,
    NUM_BUCKETS,
    Logits,
    Results,
    Scratch,
    SlotState,
)
from services.inference.engine.sampler.parameters import Parameters, bias_of, early_stops, seen_counts
from services.inference.engine.types import SampledToken, SequenceRequest, TokenLogprobs
from shared.kernels.compiling import Call
from shared.lm.sampling_params import LOWEST_LOGPROB, NO_TOKEN

assert (sampling.NO_TOKEN, sampling.LOWEST_LOGPROB) == (NO_TOKEN, LOWEST_LOGPROB), "the kernels have copies of both"

Floats = NDArray[np.float32]

RunCalls = Callable[[Sequence[Call]], object]
"""Runs some calls, at the same time or one after the other, and returns when all are done."""

_SCORED_TOGETHER = 256
_WORTH_WAKING = 1 << 18  # logits that one thread samples from before others would have woken and done their share


def run_in_turn(calls: Sequence[Call]) -> None:
    """Run calls in the thread of the caller."""
    for call in calls:
        call.run_only()


class CpuSampler:
    """Samples with kernels. Its `sample` gives the tokens of `shared.lm.sample` (see `Sampler`).

    Args:
        vocab_size: Ids that the logits are of.
        num_slots: Slots that may be open at the same time.
        valid_tokens: bool [vocab_size], False for ids that must never be sampled; None allows all.
        num_threads: How many calls the work of a step is split into.
        run: Runs them.
    """

    def __init__(
        self,
        vocab_size: int,
        num_slots: int,
        *,
        valid_tokens: "np.ndarray[Any, np.dtype[np.bool_]] | None" = None,
        num_threads: int = 1,
        run: RunCalls = run_in_turn,
    ) -> None:
        self._size = vocab_size
        self._num_slots = num_slots
        self._run = run
        self._invalid = (
            np.zeros(0, np.int32) if valid_tokens is None else np.flatnonzero(~valid_tokens).astype(np.int32)
        )
        self._parameters = Parameters(num_slots)
        self._wanting: set[int] = set()  # slots whose log-probabilities are wanted
        self._num_stops = np.zeros(num_slots, np.int64)
        self._stops = np.zeros((num_slots, 1), np.int32)
        self._bias = np.zeros((num_slots, vocab_size), np.float32)
        self._seen = np.zeros((num_slots, vocab_size), np.int32)
        self._scratch = [_new_scratch(vocab_size) for _ in range(num_threads)]
        self._slots = np.zeros(num_slots, np.int64)
        self._results = _new_results(num_slots, 0)
        self._scored = _new_results(_SCORED_TOGETHER, 0)
        self._calls = self._prepare_samples()

    def open(self, slot: int, request: SequenceRequest, output: Sequence[int] = ()) -> None:
        """See `Sampler.open`.

        Raises:
            ValueError: logit_bias names an id outside of the vocabulary.
        """
        ids, bias = bias_of(request, self._size)
        stops = early_stops(request, self._size)
        parameters = self._parameters
        if parameters.biased[slot]:
            self._bias[slot] = 0
        parameters.open(slot, request, len(output))
        if request.num_logprobs is None:
            self._wanting.discard(slot)
        else:
            self._wanting.add(slot)
        if parameters.penalized[slot]:
            self._seen[slot] = seen_counts(request, output, self._size)
        if ids:
            np.add.at(self._bias[slot], ids, np.array(bias, np.float32))
        num_top = min(request.num_logprobs or 0, self._size)
        if len(stops) > self._stops.shape[1] or num_top * self._num_slots > len(self._results.top_ids):
            self._stops = np.pad(self._stops, ((0, 0), (0, max(0, len(stops) - self._stops.shape[1]))))
            self._results = _new_results(self._num_slots, max(num_top, len(self._results.top_ids) // self._num_slots))
            self._calls = self._prepare_samples()
        self._num_stops[slot] = len(stops)
        self._stops[slot, : len(stops)] = stops

    def close(self, slot: int) -> None:
        """See `Sampler.close`; the state is overwritten when the slot is opened again."""

    def sample(self, logits: Floats, slots: Sequence[int]) -> list[SampledToken]:
        """See `Sampler.sample`; the logits are contiguous except for the stride of their rows."""
        self._check(logits, len(slots))
        self._slots[: len(slots)] = slots
        address, stride = logits.ctypes.data, logits.strides[0] // logits.itemsize
        for call in self._calls:
            arguments = call.arguments
            arguments.logits_values_address, arguments.logits_stride = address, stride
            arguments.logits_num_rows = len(slots)
        run = run_in_turn if len(slots) * self._size < _WORTH_WAKING else self._run
        run(self._calls)
        if any(call.results.value for call in self._calls):
            self._parameters.refresh(self._slots[: len(slots)])
        tokens = self._results.tokens[: len(slots)].tolist()
        sampled = []
        for index, (slot, token) in enumerate(zip(slots, tokens, strict=True)):
            is_wanted = slot in self._wanting and token != NO_TOKEN
            sampled.append(SampledToken(slot, token, _logprobs(self._results, index) if is_wanted else None))
        return sampled

    def score(self, logits: Floats, targets: Sequence[int], num_logprobs: int) -> list[TokenLogprobs]:
        """See `Sampler.score`; the logits are contiguous except for the stride of their rows."""
        self._check(logits, len(targets))
        num_top = min(num_logprobs, self._size)
        if num_top * _SCORED_TOGETHER > len(self._scored.top_ids):
            self._scored = _new_results(_SCORED_TOGETHER, num_top)
        scored = []
        for start in range(0, len(targets), _SCORED_TOGETHER):
            self._scored.peaks.fill(np.nan)
            some = np.array(targets[start : start + _SCORED_TOGETHER], np.int64)
            self._run(self._prepare_scores(logits[start : start + len(some)], some, num_top))
            if np.isnan(self._scored.peaks[: len(some)]).any():
                raise ValueError(NO_DISTRIBUTION)
            scored += [_logprobs(self._scored, index) for index in range(len(some))]
        return scored

    def _check(self, logits: Floats, num_rows: int) -> None:
        is_fit = logits.shape == (num_rows, self._size) and logits.dtype == np.float32
        if not is_fit or logits.strides[1] != logits.itemsize:
            raise ValueError(f"logits must be {num_rows} contiguous rows of {self._size} numbers of float32")

    def _prepare_samples(self) -> list[Call]:
        parameters = self._parameters
        state = SlotState(
            num_stops=self._num_stops,
            stops=self._stops.reshape(-1),
            bias=self._bias.reshape(-1),
            seen=self._seen.reshape(-1),
            **{name: getattr(parameters, name) for name in SlotState._fields if hasattr(parameters, name)},
        )
        logits, step = self._logits(num_rows=0, stride=0), len(self._scratch)
        return [
            sampling.sample_rows.prepare(logits, self._slots, state, scratch, self._results, first, step)
            for first, scratch in enumerate(self._scratch)
        ]

    def _prepare_scores(self, logits: Floats, targets: Any, num_top: int) -> list[Call]:
        some, step = self._logits(len(targets), logits.strides[0] // logits.itemsize), len(self._scratch)
        calls = [
            sampling.score_rows.prepare(some, targets, num_top, scratch, self._scored, first, step)
            for first, scratch in enumerate(self._scratch)
        ]
        for call in calls:
            call.arguments.logits_values_address = logits.ctypes.data
        return calls

    def _logits(self, num_rows: int, stride: int) -> Logits:
        """Logits whose address is set when they are there: rows that lie apart are no contiguous array."""
        return Logits(np.zeros(0, np.float32), num_rows, stride, self._size, self._invalid)


def _new_scratch(vocab_size: int) -> Scratch:
    num_blocks = -(-vocab_size // BLOCK)
    padded = num_blocks * BLOCK
    return Scratch(
        scores=np.full(padded, -np.inf, np.float32),
        weights=np.zeros(padded),
        sums=np.zeros(num_blocks),
        buckets=np.zeros(padded, np.int32),
        members=np.zeros(padded + 1, np.int32),
        masses=np.zeros(4 * (NUM_BUCKETS + 1)),
        cut=np.zeros(3),
    )


def _new_results(num_rows: int, num_top: int) -> Results:
    return Results(
        tokens=np.zeros(num_rows, np.int64),
        chosen=np.zeros(num_rows),
        top_ids=np.zeros(num_rows * num_top, np.int32),
        top_scores=np.zeros(num_rows * num_top, np.float32),
        peaks=np.zeros(num_rows),
        log_sums=np.zeros(num_rows),
        num_top=np.zeros(num_rows, np.int64),
    )


def _logprobs(results: Results, index: int) -> TokenLogprobs:
    width = len(results.top_ids) // len(results.tokens)
    top = slice(index * width, index * width + int(results.num_top[index]))
    pairs = zip(results.top_scores[top].tolist(), results.top_ids[top].tolist(), strict=True)
    likeliest = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
    peak, log_sum = float(results.peaks[index]), float(results.log_sums[index])
    return TokenLogprobs(
        float(results.chosen[index]),
        tuple((token, max((score - peak) - log_sum, LOWEST_LOGPROB)) for score, token in likeliest),
    )
