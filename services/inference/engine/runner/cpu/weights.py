"""A model's weights, packed for the kernels.

All matrices lie one after the other in one array of bytes. A matrix of N outputs and K inputs is cut into *panels* of
PANEL (32) outputs; the last one is filled up with zeros, and so is the depth K, to a multiple of PANEL, which changes
no sum. A panel is contiguous and its kind says how it is laid out:

    float32    for each input k = 0, 1, ... the 32 weights of the panel's outputs, 4 bytes each
    float16    the same, 2 bytes each
    bfloat16   see `kernels.bfloat16`
    int8       see `kernels.int8`

Queries, keys and values are one matrix. So are gates and inner outputs of the feed-forward part, in turns of LANES (16)
outputs, so that a panel holds gates and what they gate.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.inference.engine.runner.cpu import tiles
from services.inference.engine.runner.cpu.kernels.intrinsics import (
    BFLOAT16,
    BFLOAT16_TILES,
    FLOAT16,
    FLOAT32,
    LANES,
    PANEL,
)
from services.inference.engine.runner.cpu.kernels.layout import Floats, Weights
from services.inference.engine.runner.cpu.kernels.linear import MATRIX_WORDS, panel_bytes
from services.inference.engine.runner.cpu.panels import pack_panels
from shared.lm import ModelConfig, ModelFolderError
from shared.lm.weight_shapes import EMBEDDING, OUTPUT, weight_shapes

_ALIGNMENT = 64
_PANELS_AT_ONCE = 64  # while they are packed there are several copies of them


def pack_weights(config: ModelConfig, tensors: Mapping[str, Floats], kind: int = FLOAT32) -> Weights:
    """Pack all that a step reads of a model.

    Args:
        config: The architecture, no research model.
        tensors: Under Hugging Face's names, see `weight_shapes`. Those of one matrix at a time are asked for, so that a
            mapping which reads them then (`StoredWeights`) never holds the whole model. The embedding goes on to be
            used as it is; all else is copied.
        kind: What the matrices are stored as; biases are float32 in any case.

    Raises:
        ModelFolderError: Names a tensor that float16 cannot hold.
    """
    matrices = list(_matrices(config, kind))
    begins = np.cumsum([0, *(matrix.size for matrix in matrices)])
    packed = aligned_bytes(int(begins[-1]))
    words = np.zeros((len(matrices), MATRIX_WORDS), np.int64)
    multiplied_as = BFLOAT16_TILES if kind == BFLOAT16 and tiles.permitted() else kind
    biases: list[Floats] = []
    for number, (matrix, begin) in enumerate(zip(matrices, begins[:-1], strict=True)):
        matrix.pack(tensors, packed[begin : begin + matrix.size])
        bias = sum(map(len, biases)) if matrix.biases else -1
        words[number] = begin, matrix.panels, matrix.depth, multiplied_as, bias
        biases += matrix.packed_biases(tensors)
    return Weights(
        packed=packed,
        matrices=words.reshape(-1),
        gains=_gains(config, tensors),
        biases=np.concatenate([*biases, np.zeros(0, np.float32)]),
        embedding=tensors[EMBEDDING].reshape(-1),
    )


@dataclass(frozen=True)
class _Matrix:
    """One that is to be packed.

    Attributes:
        parts: The names of weights [outputs, inputs] that lie one after the other, or in turns.
        in_turns: LANES outputs of each of two parts in turns, each filled up to a multiple of LANES.
        outputs: Of all parts.
        inputs: Of each.
        kind: How to store them.
        biases: The names of the parts' biases, of all or of none.
    """

    parts: tuple[str, ...]
    in_turns: bool
    outputs: int
    inputs: int
    kind: int
    biases: tuple[str, ...] = ()

    @property
    def panels(self) -> int:
        """Their number."""
        return -(-self.outputs // PANEL)

    @property
    def depth(self) -> int:
        """Inputs, filled up."""
        return round_up(self.inputs, PANEL)

    @property
    def size(self) -> int:
        """Bytes of all panels."""
        return self.panels * int(panel_bytes.function(self.depth, self.kind))

    def pack(self, tensors: Mapping[str, Floats], target: NDArray[np.uint8]) -> None:
        """Write the panels; `target` is all zero."""
        parts = [tensors[name] for name in self.parts]
        if self.kind == FLOAT16:
            _check_range(dict(zip(self.parts, parts, strict=True)))
        rows = _in_turns(*parts) if self.in_turns else np.concatenate(parts) if len(parts) > 1 else parts[0]
        panels = target.reshape(self.panels, -1)
        for first in range(0, self.panels, _PANELS_AT_ONCE):
            some = panels[first : first + _PANELS_AT_ONCE]
            weights = np.zeros((len(some) * PANEL, self.depth), np.float32)
            of_panels = rows[first * PANEL :][: len(weights)]
            weights[: len(of_panels), : self.inputs] = of_panels
            pack_panels(weights, self.kind, some.reshape(-1))

    def packed_biases(self, tensors: Mapping[str, Floats]) -> list[Floats]:
        """One array for the outputs of all panels, or none."""
        if not self.biases:
            return []
        values = np.concatenate([tensors[name] for name in self.biases])
        return [np.pad(values, (0, self.panels * PANEL - len(values)))]


def _check_range(tensors: Mapping[str, Floats]) -> None:
    for name, tensor in tensors.items():
        largest = float(np.abs(tensor).max())
        if largest >= 65520:  # from here on, the nearest float16 is infinite
            raise ModelFolderError(
                f"{name} holds a weight of magnitude {largest:g}, but float16 ends at 65,504: "
                "set OWNLM_DTYPE to bfloat16 or float32"
            )


def _matrices(config: ModelConfig, kind: int) -> Iterator[_Matrix]:
    """The matrices in the order in which the step numbers them."""
    shapes = weight_shapes(config)

    def matrix(*parts: str, in_turns: bool = False) -> _Matrix:
        multiple = LANES if in_turns else 1
        outputs = sum(round_up(shapes[name][0], multiple) for name in parts)
        biases = tuple(bias for name in parts if (bias := name.removesuffix("weight") + "bias") in shapes)
        return _Matrix(parts, in_turns, outputs, shapes[parts[0]][1], kind, biases)

    for layer in range(config.num_layers):
        of_layer = f"model.layers.{layer}"
        yield matrix(*(f"{of_layer}.self_attn.{name}_proj.weight" for name in "qkv"))
        yield matrix(f"{of_layer}.self_attn.o_proj.weight")
        yield matrix(*(f"{of_layer}.mlp.{name}_proj.weight" for name in ("gate", "up")), in_turns=True)
        yield matrix(f"{of_layer}.mlp.down_proj.weight")
    yield matrix(EMBEDDING if config.tie_embeddings else OUTPUT)


def _in_turns(gate: Floats, up: Floats) -> Floats:
    """LANES outputs of one, then of the other; [2 * d_ff rounded up to LANES, d_model]."""
    padding = ((0, -len(gate) % LANES), (0, 0))
    both = [np.pad(matrix, padding).reshape(-1, LANES, gate.shape[1]) for matrix in (gate, up)]
    return np.stack(both, axis=1).reshape(-1, gate.shape[1])


def _gains(config: ModelConfig, tensors: Mapping[str, Floats]) -> Floats:
    parts: list[Floats] = []
    for layer in range(config.num_layers):
        of_layer = f"model.layers.{layer}"
        parts += [_padded(tensors[f"{of_layer}.{name}_layernorm.weight"]) for name in ("input", "post_attention")]
        if config.qk_norm:
            parts += [tensors[f"{of_layer}.self_attn.{name}_norm.weight"] for name in "qk"]
    return np.concatenate([*parts, _padded(tensors["model.norm.weight"])])


def _padded(gain: Floats) -> Floats:
    return np.pad(gain, (0, -len(gain) % LANES))


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """Zeros that begin with a cache line."""
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size]


def round_up(number: int, multiple: int) -> int:
    """The least multiple that is not less."""
    return -(-number // multiple) * multiple
