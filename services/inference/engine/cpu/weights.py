"""A model's weights, packed for the kernels.

All matrices lie one after the other in one array of bytes. A matrix of N outputs and K inputs is cut into *panels* of
PANEL (32) outputs; the last one is filled up with zeros, and so is the depth K, to a multiple of PANEL, which changes
no sum. A panel is contiguous and its kind says how it is laid out:

    float32                for each input k = 0, 1, ... the 32 weights of the panel's outputs, 4 bytes each
    bfloat16 and float16   the same, 2 bytes each
    int8                   see `kernels.int8`

Queries, keys and values are one matrix. So are gates and inner outputs of the feed-forward part, in turns of LANES (16)
outputs, so that a panel holds gates and what they gate.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.inference.engine.cpu.kernels.intrinsics import FLOAT16, FLOAT32, LANES, PANEL
from services.inference.engine.cpu.kernels.layout import Floats, Weights
from services.inference.engine.cpu.kernels.linear import MATRIX_WORDS, panel_bytes
from services.inference.engine.cpu.panels import pack_panels
from shared.lm import ModelConfig, ModelFolderError
from shared.lm.rope import RotaryEmbedding

_ALIGNMENT = 64
_EMBEDDING = "model.embed_tokens.weight"


def pack_weights(
    config: ModelConfig, tensors: Mapping[str, Tensor], context_length: int, kind: int = FLOAT32
) -> Weights:
    """Pack all that a step reads of a model.

    Args:
        config: The architecture, no research model.
        tensors: In float32 on the CPU, under Hugging Face's names, as of `Transformer.state_dict`. The embedding goes
            on to be used as it is; all else is copied.
        context_length: Positions whose angles are wanted.
        kind: What the matrices are stored as.

    Raises:
        ModelFolderError: Names a tensor that float16 cannot hold.
    """
    if kind == FLOAT16:
        _check_range(tensors)
    matrices = [_Matrix(parts, kind) for parts in _matrices(config, tensors)]
    begins = np.cumsum([0, *(matrix.size for matrix in matrices)])
    packed = _aligned_bytes(int(begins[-1]))
    words = np.zeros((len(matrices), MATRIX_WORDS), np.int64)
    for number, (matrix, begin) in enumerate(zip(matrices, begins[:-1], strict=True)):
        matrix.pack(packed[begin : begin + matrix.size])
        words[number] = begin, matrix.panels, matrix.depth, kind
    return Weights(
        packed=packed,
        matrices=words.reshape(-1),
        gains=_gains(config, tensors),
        embedding=_array(tensors[_EMBEDDING]).reshape(-1),
        rotation=_rotation(config, context_length),
    )


def _check_range(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        largest = float(tensor.abs().max())
        if largest >= 65520:  # from here on, the nearest float16 is infinite
            raise ModelFolderError(
                f"{name} holds a weight of magnitude {largest:g}, but float16 ends at 65,504: "
                "set OWNLM_DTYPE to bfloat16 or float32"
            )


class _Matrix:
    """One that is to be packed.

    Args:
        parts: Weights [outputs, inputs] that lie one after the other.
        kind: How to store them.
    """

    def __init__(self, parts: list[Tensor], kind: int):
        self._parts = parts
        self.kind = kind
        self.outputs = sum(len(part) for part in parts)
        self.inputs = parts[0].shape[1]
        self.panels = -(-self.outputs // PANEL)
        self.depth = round_up(self.inputs, PANEL)
        self.size = self.panels * panel_bytes.function(self.depth, kind)

    def pack(self, target: NDArray[np.uint8]) -> None:
        """Write the panels."""
        weights = np.zeros((self.panels * PANEL, self.depth), np.float32)
        weights[: self.outputs, : self.inputs] = np.concatenate([_array(part) for part in self._parts])
        pack_panels(weights, self.kind, target)


def _matrices(config: ModelConfig, tensors: Mapping[str, Tensor]) -> Iterator[list[Tensor]]:
    """The parts of each matrix, in the order in which the step numbers them."""
    for layer in range(config.num_layers):
        of_layer = f"model.layers.{layer}"
        yield [tensors[f"{of_layer}.self_attn.{name}_proj.weight"] for name in "qkv"]
        yield [tensors[f"{of_layer}.self_attn.o_proj.weight"]]
        yield [_in_turns(*(tensors[f"{of_layer}.mlp.{name}_proj.weight"] for name in ("gate", "up")))]
        yield [tensors[f"{of_layer}.mlp.down_proj.weight"]]
    yield [tensors[_EMBEDDING if config.tie_embeddings else "lm_head.weight"]]


def _in_turns(gate: Tensor, up: Tensor) -> Tensor:
    """LANES outputs of one, then of the other; [2 * d_ff rounded up to LANES, d_model]."""
    inner, inputs = gate.shape
    turns = gate.new_zeros(round_up(inner, LANES), 2, inputs).view(-1, 2, LANES, inputs)
    for which, matrix in enumerate((gate, up)):
        padded = matrix.new_zeros(round_up(inner, LANES), inputs)
        padded[:inner] = matrix.detach()
        turns[:, which] = padded.view(-1, LANES, inputs)
    return turns.view(-1, inputs)


def _gains(config: ModelConfig, tensors: Mapping[str, Tensor]) -> Floats:
    parts: list[Floats] = []
    for layer in range(config.num_layers):
        of_layer = f"model.layers.{layer}"
        parts += [_padded(tensors[f"{of_layer}.{name}_layernorm.weight"]) for name in ("input", "post_attention")]
        if config.qk_norm:
            parts += [_array(tensors[f"{of_layer}.self_attn.{name}_norm.weight"]) for name in "qk"]
    return np.concatenate([*parts, _padded(tensors["model.norm.weight"])])


def _padded(gain: Tensor) -> Floats:
    padded = np.zeros(round_up(len(gain), LANES), np.float32)
    padded[: len(gain)] = _array(gain)
    return padded


def _rotation(config: ModelConfig, context_length: int) -> Floats:
    cosines, sines = RotaryEmbedding(config.rope, config.head_dim)(torch.arange(context_length))
    return _array(torch.cat((cosines, sines), dim=-1)).reshape(-1)


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().contiguous().numpy()
    return array


def _aligned_bytes(size: int) -> NDArray[np.uint8]:
    """Zeros from a cache line's begin on, with room behind them for what is asked for ahead of use."""
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size]


def round_up(number: int, multiple: int) -> int:
    """The least multiple that is not less."""
    return -(-number // multiple) * multiple


def packed_bytes(config: ModelConfig, kind: int = FLOAT32) -> int:
    """Bytes of the matrices of a model."""
    heads = config.num_heads + 2 * config.num_kv_heads
    layer = [
        (heads * config.head_dim, config.d_model),
        (config.d_model, config.num_heads * config.head_dim),
        (2 * round_up(config.d_ff, LANES), config.d_model),
        (config.d_model, config.d_ff),
    ]
    sizes = [
        -(-outputs // PANEL) * panel_bytes.function(round_up(inputs, PANEL), kind)
        for outputs, inputs in [*layer * config.num_layers, (config.vocab_size, config.d_model)]
    ]
    return sum(sizes)
