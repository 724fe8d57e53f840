"""Runs steps with torch, on any device: the runner for CUDA. It has been run on CPU only; see docs/how-to/gpu-host.md.

A step is *tiles* of fixed numbers of tokens: one of the generated tokens, and as many as needed of parts of prompts. On
CUDA a tile is a captured graph, and so are output projection and sampler, so that a step of 32 generated tokens is two
launches. Of each kind there are tiles of several sizes, and a step takes the smallest that holds what it has: a token's
results do not depend on the tile (see `operations`).

Each group of tokens finds what it attends to through a block table, the tokens of its own prompt included: tiles run in
the order of positions, and write keys and values before they read them.
"""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from services.inference.engine.runner.protocol import RunnerLostError, Segment, StepResult
from services.inference.engine.runner.torch.cache import PagedCache
from services.inference.engine.runner.torch.graph import Graphs
from services.inference.engine.runner.torch.operations import group_size
from services.inference.engine.runner.torch.selector import operations_for, triton_unavailable_reason
from services.inference.engine.runner.torch.tile import Span, Tile, TileInput, TileShape, pack, rotation_of
from services.inference.engine.runner.torch.weights import merged_weights
from services.inference.engine.sampler.torch_sampler import Batch, Plan, TorchSampler, sizes_up_to
from services.inference.engine.sampler.transfers import copy_to_device
from services.inference.engine.types import BLOCK_SIZE, SampledToken, SequenceRequest, TokenLogprobs, num_blocks_of
from shared.lm import ModelConfig, Transformer

_PROMPT_TILES = (64, 512)
"""Tokens of the smallest and of the largest tile of prompts."""

# What torch raises for a fault of the device: later results in this process cannot be trusted. Older versions raise a
# plain RuntimeError, which the core's probe detects.
_DEVICE_FAULT: type[Exception] | tuple[()] = getattr(torch, "AcceleratorError", ())

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
        model: In evaluation mode, with RoPE, pre-norm and SwiGLU, as every model that the service opens. Its
            projections are merged: it remains usable, but not its parameters' memory apart.
        num_blocks: Blocks of the KV cache.
        num_slots: Sequences that may run at the same time.
        max_length: Tokens of a sequence, prompt and output together, where the cache has room for as many.
        max_step_tokens: The most tokens of a step.
        kv_dtype: Of keys and values in the cache; by default that of the model.
        valid_tokens: bool [vocab_size], False for ids that must never be sampled.

    Attributes:
        prompt_tiles, decode_tiles: With what runs each, the smallest first.
        sample_graphs: What draws from logits, for each plan.
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
        config, weight = model.config, model.output_weight
        self._model, self._device = model, weight.device
        self._operations = operations_for(weight.device)
        self._cache = PagedCache(config, num_blocks + 1, weight.device, kv_dtype or weight.dtype)
        # The last row is for padding.
        self._hidden = torch.zeros(max_step_tokens + 1, config.d_model, device=self._device, dtype=weight.dtype)
        max_blocks = min(num_blocks_of(max_length), num_blocks)
        rotation = rotation_of(model, max_blocks * BLOCK_SIZE)
        layers = merged_weights(model)
        self._tile = Tile(model, layers, self._cache, rotation, operations=self._operations, hidden=self._hidden)
        self._graphs = Graphs(self._device)
        size = group_size(config.num_heads, config.num_kv_heads)
        smallest, largest = (tokens // size for tokens in _PROMPT_TILES)
        self.prompt_tiles = self._capture([TileShape(n, size) for n in sizes_up_to(largest, smallest)], max_blocks)
        self.decode_tiles = self._capture([TileShape(n, 1) for n in sizes_up_to(num_slots)], max_blocks)
        self._sampler = TorchSampler(
            config.vocab_size,
            num_slots,
            self._device,
            valid_tokens=valid_tokens,
            has_kernel=triton_unavailable_reason(self._device) is None,
        )
        self._controls = torch.from_numpy(self._controls_of(self._sampler.batch([]), [])).to(self._device)
        self._logits = torch.zeros(num_slots, config.vocab_size, device=self._device)
        self._tokens = torch.zeros(num_slots, dtype=torch.int64, device=self._device)
        self.sample_graphs = {
            plan: self._graphs.capture(partial(self._sample_from_hidden, plan)) for plan in self._sampler.plans
        }

    @staticmethod
    def position_bytes(config: ModelConfig, num_slots: int) -> int:
        """Memory for each position of a full context beside the cache: rotation, and block tables of all tiles."""
        num_groups = 2 * num_slots + 2 * _PROMPT_TILES[1] // group_size(config.num_heads, config.num_kv_heads)
        return 4 * config.head_dim + 4 * num_groups // BLOCK_SIZE

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
        ends = np.cumsum([len(segment.tokens) for segment in segments]).tolist()
        spans = [
            Span(segment.tokens, segment.start, segment.blocks, end - len(segment.tokens))
            for end, segment in zip(ends, segments, strict=True)
        ]
        self._run_tiles(self.prompt_tiles, [span for span in spans if len(span.tokens) > 1])
        self._run_tiles(self.decode_tiles, [span for span in spans if len(span.tokens) == 1])
        prompt_logprobs = [
            self._score(span.row, segment) if segment.targets else []
            for span, segment in zip(spans, segments, strict=True)
        ]
        sources = [end - 1 for end, segment in zip(ends, segments, strict=True) for _ in segment.sample_slots]
        slots = [slot for segment in segments for slot in segment.sample_slots]
        return StepResult(self._sample_slots(slots, sources) if slots else [], prompt_logprobs)

    def _capture(self, shapes: Sequence[TileShape], max_blocks: int) -> list[tuple[TileInput, Callable[[], None]]]:
        """Tiles of these shapes, the smallest first, with what runs them."""
        spare = {"spare_block": self.num_blocks, "spare_row": len(self._hidden) - 1}
        inputs = [TileInput(shape, max_blocks, self._device, **spare) for shape in shapes]
        return [(each, self._graphs.capture(partial(self._tile.run, each))) for each in inputs]

    def _run_tiles(self, tiles: Sequence[tuple[TileInput, Callable[[], None]]], spans: Sequence[Span]) -> None:
        """Leave the final residual stream of all tokens in `_hidden`."""
        largest, _ = tiles[-1]
        for packed in pack(spans, largest.shape):
            needed = sum(-(-len(span.tokens) // largest.shape.group_size) for span in packed)
            tile, run = next(each for each in tiles if each[0].shape.num_groups >= needed)
            tile.fill(packed)
            run()

    def _sample_slots(self, slots: Sequence[int], sources: Sequence[int]) -> list[SampledToken]:
        batch = self._sampler.batch(slots)
        copy_to_device(self._controls_of(batch, sources), self._controls)
        self.sample_graphs[self._sampler.plan_of(batch)]()
        return self._sampler.collect(self._logits, self._tokens, batch)

    def _sample_from_hidden(self, plan: Plan) -> None:
        hidden = self._hidden.index_select(0, self._controls[:, -1].int())
        self._logits.copy_(self._logits_of(hidden))
        self._tokens.copy_(self._sampler.sample_on_device(self._logits, self._controls, plan))

    def _controls_of(self, batch: Batch, sources: Sequence[int]) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """The sampler's input, and in the last column the tokens whose logits are sampled from."""
        column = np.zeros((self.num_slots, 1))
        column[: len(sources), 0] = np.array(sources)[batch.order]
        return np.concatenate((batch.controls(self.num_slots), column), 1)

    def _logits_of(self, hidden: Tensor) -> Tensor:
        return self._model.cap(self._operations.logits(hidden, self._model.output_weight))

    def _score(self, start: int, segment: Segment) -> list[TokenLogprobs]:
        """Log-probabilities of a prompt's tokens, some at a time."""
        scored: list[TokenLogprobs] = []
        for first in range(0, len(segment.targets), self.num_slots):
            targets = segment.targets[first : first + self.num_slots]
            hidden = self._hidden[start + first : start + first + len(targets)]
            scored += self._sampler.score(self._logits_of(hidden), targets, segment.num_logprobs)
        return scored
