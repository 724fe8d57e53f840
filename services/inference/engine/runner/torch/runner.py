"""Runs steps with torch, on any device: the runner for CUDA. It has been run on CPU only; see docs/how-to/deploy.md.

A step is cut into *tiles* of a fixed number of tokens: parts of prompts, generated tokens, and padding in the last
one. All tiles have the same shapes, so

- on CUDA a tile is a captured graph: a step of 32 decoding sequences is one launch for the model and one for output
  projection and sampler, and a prompt is a few launches more;
- a token's results do not depend on what else is in its tile. A product of matrices of one shape is computed by one
  algorithm, in which a token's row decides where its sums are computed but not in which order (so it is in cuBLAS and
  MKL as far as we know; neither promises it), in float32 without TF32. Attention goes through partitions of positions
  in one order, and a partition that a token does not reach leaves its result unchanged.

Each token finds what it attends to through a block table of its own, the tokens of its own prompt included: tiles run
in the order of positions, and write keys and values before they read them.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor

from services.inference.engine.runner.protocol import RunnerLostError, Segment, StepResult
from services.inference.engine.runner.torch.graph import Captured
from services.inference.engine.runner.torch.tile import (
    CACHE_INDEX,
    FIRST_BLOCK,
    PARTITION_BLOCKS,
    POSITION,
    TOKEN,
    PagedCache,
    Tile,
)
from services.inference.engine.sampler.torch_sampler import TorchSampler
from services.inference.engine.types import BLOCK_SIZE, SequenceRequest, TokenLogprobs
from shared.lm import Transformer

_LARGEST_TILE = 64

# What torch raises for a fault of the device: later results in this process cannot be trusted. Older versions raise a
# plain RuntimeError, which the core's probe detects.
_DEVICE_FAULT: type[Exception] | tuple[()] = getattr(torch, "AcceleratorError", ())

IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _detects_device_fault(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Raise `RunnerLostError` for a fault of the device in a method."""

    @wraps(method)
    def watched(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return method(*args, **kwargs)
        except _DEVICE_FAULT as error:
            raise RunnerLostError(f"the GPU failed: {str(error).partition(chr(10))[0]}") from error

    return watched


class TorchRunner:
    """A `Runner` of a Transformer on its device and in its dtype.

    Waits for the device once a step, for the tokens; once more for each segment with log-probabilities of its prompt.

    Args:
        model: In evaluation mode, with RoPE and pre-norm, as every model that the service opens.
        num_blocks: Blocks of the KV cache.
        num_slots: Sequences that may run at the same time.
        max_length: Tokens of a sequence, prompt and output together, where the cache has room for as many.
        max_step_tokens: The most tokens of a step.
        kv_dtype: Of keys and values in the cache; by default that of the model.
        valid_tokens: bool [vocab_size], False for ids that must never be sampled.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: Transformer,
        *,
        num_blocks: int,
        num_slots: int,
        max_length: int,
        max_step_tokens: int,
        kv_dtype: torch.dtype | None = None,
        valid_tokens: Tensor | None = None,
    ) -> None:
        self.num_blocks, self.num_slots, self.max_step_tokens = num_blocks, num_slots, max_step_tokens
        self.block_memory = None
        weight = model.output_weight
        self._model, self._device = model, weight.device
        self._cache = PagedCache(model.config, num_blocks + 1, weight.device, kv_dtype or weight.dtype)
        self._tile_size = min(_LARGEST_TILE, -(-num_slots // 16) * 16)
        self._num_partitions = -(-min(max_length, num_blocks * BLOCK_SIZE) // (BLOCK_SIZE * PARTITION_BLOCKS))
        num_tiles = -(-max_step_tokens // self._tile_size)
        width = FIRST_BLOCK + self._num_partitions * PARTITION_BLOCKS
        self._input = self._pinned(torch.zeros(num_tiles * self._tile_size, width, dtype=torch.int64))
        self._tile_input = torch.from_numpy(self._empty_input(self._tile_size)).to(self._device)
        self._tiles = {
            partitions: Captured(Tile(model, self._cache, self._tile_input, partitions), self._device)
            for partitions in _doubling(self._num_partitions)
        }
        self._hidden = torch.zeros(len(self._input), model.config.d_model, device=self._device, dtype=weight.dtype)
        self._sampler = TorchSampler(model.config.vocab_size, num_slots, self._device, valid_tokens=valid_tokens)
        self._controls = self._pinned(torch.from_numpy(self._controls_of([], [])))
        self._sample_input = self._controls.to(self._device)
        self._logits = torch.zeros(num_slots, model.config.vocab_size, device=self._device)
        self._sample = Captured(self._sample_from_hidden, self._device)

    @_detects_device_fault
    def open_slot(self, slot: int, request: SequenceRequest, output: Sequence[int] = ()) -> None:
        """See `Runner.open_slot`."""
        self._sampler.open(slot, request, output)

    def close_slot(self, slot: int) -> None:
        """See `Runner.close_slot`."""
        self._sampler.close(slot)

    @_detects_device_fault
    @torch.inference_mode()
    def copy_block(self, source: int, target: int) -> None:
        """See `Runner.copy_block`."""
        self._cache.copy(source, target)

    @_detects_device_fault
    @torch.inference_mode()
    def run(self, segments: Sequence[Segment]) -> StepResult:
        """See `Runner.run`."""
        ends = np.cumsum([len(segment.tokens) for segment in segments])
        sources = [int(end) - 1 for end, segment in zip(ends, segments, strict=True) for _ in segment.sample_slots]
        slots = [slot for segment in segments for slot in segment.sample_slots]
        self._controls.numpy()[:] = self._controls_of(slots, sources)
        self._sample_input.copy_(self._controls, non_blocking=True)
        self._run_tiles(segments, int(ends[-1]))
        prompt_logprobs = [
            self._score(int(end) - len(segment.tokens), segment) if segment.targets else []
            for end, segment in zip(ends, segments, strict=True)
        ]
        if slots:
            return StepResult(self._sampler.collect(self._logits, self._sample(), slots), prompt_logprobs)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # the next step overwrites what is still being copied
        return StepResult([], prompt_logprobs)

    def _run_tiles(self, segments: Sequence[Segment], num_tokens: int) -> None:
        """Leave the final residual stream of all tokens in `_hidden`."""
        size = self._tile_size
        padded = -(-num_tokens // size) * size
        host = self._input[:padded].numpy()
        host[:] = self._empty_input(padded)
        end = 0
        for segment in segments:
            start, end = end, end + len(segment.tokens)
            _write_segment(host[start:end], segment)
        on_device = self._input[:padded].to(self._device, non_blocking=True)
        for start in range(0, padded, size):
            reach = int(host[start : start + size, POSITION].max()) + 1
            needed = -(-reach // (BLOCK_SIZE * PARTITION_BLOCKS))
            self._tile_input.copy_(on_device[start : start + size])
            tile = next(tile for partitions, tile in self._tiles.items() if partitions >= needed)
            self._hidden[start : start + size] = tile()

    def _sample_from_hidden(self) -> Tensor:
        hidden = self._hidden[self._sample_input[:, -1].long()]
        self._logits.copy_(self._model.logits(hidden))
        return self._sampler.sample_on_device(self._logits, self._sample_input)

    def _controls_of(self, slots: Sequence[int], sources: Sequence[int]) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """The sampler's input, and in the last column the tokens whose logits are sampled from."""
        column = np.zeros((self.num_slots, 1))
        column[: len(sources), 0] = sources
        return np.concatenate((self._sampler.controls(slots, self.num_slots), column), 1)

    def _score(self, start: int, segment: Segment) -> list[TokenLogprobs]:
        """Log-probabilities of a prompt's tokens, from matrix products of the same shape as for sampling."""
        scored: list[TokenLogprobs] = []
        for first in range(0, len(segment.targets), self.num_slots):
            targets = segment.targets[first : first + self.num_slots]
            hidden = self._hidden[start + first : start + first + len(targets)]
            logits = self._model.logits(F.pad(hidden, (0, 0, 0, self.num_slots - len(targets)))).float()
            scored += self._sampler.score(logits[: len(targets)], targets, segment.num_logprobs)
        return scored

    def _empty_input(self, num_tokens: int) -> IntArray:
        """Padding tokens, which read and write the extra block at the end of the cache."""
        empty = np.full((num_tokens, self._input.shape[1]), self.num_blocks, np.int64)
        empty[:, :FIRST_BLOCK] = 0
        empty[:, CACHE_INDEX] = self.num_blocks * BLOCK_SIZE
        return empty

    def _pinned(self, tensor: Tensor) -> Tensor:
        """Move a tensor to page-locked memory, from which the device copies asynchronously."""
        return tensor.pin_memory() if self._device.type == "cuda" else tensor


def _write_segment(rows: IntArray, segment: Segment) -> None:
    blocks = np.array(segment.blocks, np.int64)
    positions = np.arange(segment.start, segment.start + len(rows))
    rows[:, TOKEN] = segment.tokens
    rows[:, POSITION] = positions
    rows[:, CACHE_INDEX] = blocks[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    rows[:, FIRST_BLOCK : FIRST_BLOCK + len(blocks)] = blocks


def _doubling(last: int) -> Iterator[int]:
    """1, 2, 4 and so on up to `last`, which ends it."""
    number = 1
    while number < last:
        yield number
        number *= 2
    yield last
