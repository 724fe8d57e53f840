"""A fixed number of tokens through the model, each at any position of any sequence."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor

from services.inference.engine.runner.torch.cache import PagedCache
from services.inference.engine.runner.torch.operations import HeadNorms, LayerCache, Layout, Operations, Rotation
from services.inference.engine.runner.torch.weights import LayerWeights
from services.inference.engine.sampler.transfers import copy_to_device
from services.inference.engine.types import BLOCK_SIZE, num_blocks_of
from shared.lm import Transformer


class TileShape(NamedTuple):
    """The shape of a tile.

    Attributes:
        num_groups: Groups of consecutive tokens of one sequence.
        group_size: Tokens of each; those that a sequence does not fill are padding.
    """

    num_groups: int
    group_size: int

    @property
    def num_tokens(self) -> int:
        """Of all groups, padding included."""
        return self.num_groups * self.group_size


class Span(NamedTuple):
    """Consecutive tokens of a sequence, which fill groups of a tile.

    Attributes:
        tokens: The ids.
        start: The position of the first.
        blocks: The sequence's blocks, from position 0 on.
        row: Of the output, for the first.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    row: int

    def cut(self, count: int) -> tuple["Span", "Span"]:
        """The first `count` tokens, and the others."""
        return (
            self._replace(tokens=self.tokens[:count]),
            self._replace(tokens=self.tokens[count:], start=self.start + count, row=self.row + count),
        )


class TileInput:
    """What a tile reads, in one array: ids, positions, places in the cache, rows of the output, then block tables.

    The tables come last, block by block, so that the first blocks of all groups are copied without the rest.

    Args:
        shape: Of the tile.
        num_blocks: The most blocks of a sequence.
        device: That the tile runs on.
        spare_block: That padding is written to.
        spare_row: Of the output, for padding.
    """

    def __init__(
        self, shape: TileShape, num_blocks: int, device: torch.device, *, spare_block: int, spare_row: int
    ) -> None:
        self.shape = shape
        self._padding = np.array([[0], [0], [spare_block * BLOCK_SIZE], [spare_row]], np.int32)
        head = len(self._padding) * shape.num_tokens
        self._host = np.zeros(head + num_blocks * shape.num_groups, np.int32)
        self._device = torch.zeros(len(self._host), dtype=torch.int32, device=device)
        self._columns = self._host[:head].reshape(len(self._padding), -1)
        self._tables = self._host[head:].reshape(num_blocks, -1)
        self._written: list[list[int]] = [[] for _ in range(shape.num_groups)]  # blocks in the tables
        self.tokens, positions, cache_indices, self.rows = self._device[:head].view(len(self._padding), -1)
        self.layout = Layout(positions, cache_indices, self._device[head:].view(num_blocks, -1))

    def fill(self, spans: Sequence[Span]) -> None:
        """Let these be the tile's tokens, each span from the beginning of a group on; does not wait for the device."""
        counts = np.array([len(span.tokens) for span in spans])
        num_groups = -(-counts // self.shape.group_size)
        first_groups = num_groups.cumsum() - num_groups
        for span, first, count in zip(spans, first_groups.tolist(), num_groups.tolist(), strict=True):
            self._write_blocks(span, range(first, first + count))
        within = np.arange(counts.sum()) - (counts.cumsum() - counts).repeat(counts)
        places = (first_groups * self.shape.group_size).repeat(counts) + within
        positions = np.array([span.start for span in spans]).repeat(counts) + within
        blocks = self._tables[positions // BLOCK_SIZE, places // self.shape.group_size]
        self._columns[:] = self._padding
        self._columns[0, places] = [token for span in spans for token in span.tokens]
        self._columns[1, places] = positions
        self._columns[2, places] = blocks * BLOCK_SIZE + positions % BLOCK_SIZE
        self._columns[3, places] = np.array([span.row for span in spans]).repeat(counts) + within
        num_used = self._columns.size + (int(positions.max()) // BLOCK_SIZE + 1) * self.shape.num_groups
        copy_to_device(self._host[:num_used], self._device[:num_used])

    def _write_blocks(self, span: Span, groups: range) -> None:
        blocks = list(span.blocks[: num_blocks_of(span.start + len(span.tokens))])
        if all(self._written[group] == blocks for group in groups):
            return
        self._tables[: len(blocks), groups.start : groups.stop] = np.array(blocks, np.int32)[:, None]
        for group in groups:
            self._written[group] = blocks


def pack(spans: Iterable[Span], shape: TileShape) -> Iterator[list[Span]]:
    """Cut spans into tiles of a shape, in their order; the last one has room left."""
    tile: list[Span] = []
    room = shape.num_groups
    for span in spans:
        rest = span
        while rest.tokens:
            part, rest = rest.cut(room * shape.group_size)
            tile.append(part)
            room -= -(-len(part.tokens) // shape.group_size)
            if not room:
                yield tile
                tile, room = [], shape.num_groups
    if tile:
        yield tile


class Tile:
    """The model on a tile; reads the same input at each call, and leaves the final residual stream in `hidden`.

    Args:
        model: The Transformer.
        layers: Its merged weights.
        cache: Keys and values.
        rotation: Of as many positions as there may be.
        operations: That it is made of.
        hidden: [any, d_model]; the tile's input says which rows.
    """

    def __init__(
        self,
        model: Transformer,
        layers: Sequence[LayerWeights],
        cache: PagedCache,
        rotation: Rotation,
        *,
        operations: Operations,
        hidden: Tensor,
    ) -> None:
        self._model, self._layers, self._cache, self._rotation = model, layers, cache, rotation
        gain = model.model.norm.weight
        if not isinstance(gain, Tensor):
            raise TypeError("a model without a final norm cannot be served")
        self._gain, self._operations, self._hidden = gain, operations, hidden

    def run(self, tile: TileInput) -> None:
        """Write keys and values of the tile's tokens, and their final residual stream."""
        run, layout = self._operations, tile.layout
        decoder, eps = self._model.model, self._model.config.norm_eps
        x = F.embedding(tile.tokens, decoder.embed_tokens.weight)
        for layer, *cells in zip(self._layers, self._cache.keys, self._cache.values, strict=True):
            cache = LayerCache(*cells)
            qkv = run.linear(run.norm(x, layer.input_norm, eps), layer.qkv, layer.qkv_bias)
            norms = HeadNorms(layer.q_norm, layer.k_norm, eps)
            queries = run.rotate_and_write(qkv, cache, layout, self._rotation, norms)
            x = run.linear(run.attend(queries, cache, layout), layer.out, layer.out_bias, x)
            x = run.linear(run.swiglu(run.norm(x, layer.mlp_norm, eps), layer.gate_up), layer.down, None, x)
        self._hidden.index_copy_(0, tile.rows.long(), run.norm(x, self._gain, eps))


def rotation_of(model: Transformer, max_length: int) -> Rotation:
    """Cosines and sines of all positions.

    Raises:
        ValueError: The model has no RoPE.
    """
    if model.model.rotary is None:
        raise ValueError("a model without RoPE cannot be served")
    return Rotation(*model.model.rotary(torch.arange(max_length, device=model.output_weight.device)))
