"""Writing a model folder as a GGUF file, which llama.cpp, Ollama and LM Studio run.

The package `gguf` writes the bytes; https://github.com/ggml-org/ggml/blob/master/docs/gguf.md specifies the format.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize
from numpy.typing import NDArray

from shared.chat import read_templates
from shared.lm.config import ModelConfig
from shared.lm.description import ModelDescription, read_description
from shared.lm.rope_config import Llama3Scaling, RopeConfig, rope_frequencies
from shared.lm.stored_weights import StoredWeights
from shared.lm.weight_shapes import EMBEDDING, OUTPUT, weight_shapes
from shared.system.files import replaced_file
from trainer.errors import TrainerError
from trainer.export.gguf_architecture import add_architecture, architecture_of
from trainer.export.gguf_tokenizer import add_tokenizer

Dtype = Literal["f32", "f16", "bf16", "q8_0"]
Matrix = NDArray[np.float32]

_TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
_Q8_0_BLOCK = 32

logging.getLogger("gguf").setLevel(logging.WARNING)  # it names the temporary file
_LARGEST_FLOAT16 = float(np.finfo(np.float16).max)
_NAMES = {EMBEDDING: "token_embd.weight", OUTPUT: "output.weight", "model.norm.weight": "output_norm.weight"}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True)
class _Tensor:
    """One that the file holds; `read` gives its values in float32."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    read: Callable[[], Matrix]


def write_gguf(folder: Path, path: Path, dtype: Dtype) -> list[str]:
    """Write a model folder as a GGUF file; whole, or not at all.

    Matrices are stored as `dtype`; norms and biases, as llama.cpp needs them, in float32. One tensor is in memory at a
    time.

    Args:
        folder: Any that the services open.
        path: The file; an existing one is replaced.
        dtype: How matrices are stored. Rows that `q8_0` cannot divide into blocks of 32 become float16.

    Returns:
        What llama.cpp does differently, as readable sentences.

    Raises:
        ModelFolderError: The folder cannot be read.
        TrainerError: llama.cpp cannot run the model exactly, or the file cannot be written.
    """
    model = read_description(folder)
    with replaced_file(path) as temporary, closing(GGUFWriter(temporary, architecture_of(model.config))) as writer:
        writer.add_name(folder.resolve().parent.name if folder.name == "model" else folder.resolve().name)
        writer.add_file_type(_TYPES[dtype][1])
        add_architecture(writer, model.config)
        notes = add_tokenizer(writer, model)
        _add_chat_template(writer, model)
        with StoredWeights(folder, model.config) as weights:
            _write_tensors(writer, list(_tensors(model.config, weights, dtype)))
    return notes


def _tensors(config: ModelConfig, weights: StoredWeights, dtype: Dtype) -> Iterator[_Tensor]:
    if isinstance(config.rope.scaling, Llama3Scaling):
        plain = rope_frequencies(RopeConfig(config.rope.theta), config.head_dim)
        factors = plain / rope_frequencies(config.rope, config.head_dim)
        yield _Tensor("rope_freqs.weight", factors.shape, GGMLQuantizationType.F32, lambda: factors)
    for name, shape in weight_shapes(config).items():
        heads = _heads_in_pairs(config, name)
        yield _Tensor(_gguf_name(name), shape, _kind(shape, dtype), partial(_read, weights, name, heads))


def _read(weights: StoredWeights, name: str, heads: int) -> Matrix:
    return _in_pairs(weights[name], heads)


def _kind(shape: tuple[int, ...], dtype: Dtype) -> GGMLQuantizationType:
    if len(shape) == 1:
        return GGMLQuantizationType.F32
    if dtype == "q8_0" and shape[1] % _Q8_0_BLOCK:
        return GGMLQuantizationType.F16
    return _TYPES[dtype][0]


def _write_tensors(writer: GGUFWriter, tensors: list[_Tensor]) -> None:
    for tensor in tensors:
        stored = quantize(np.zeros((1, tensor.shape[-1]), np.float32), tensor.kind)
        shape = (*tensor.shape[:-1], stored.shape[-1])
        writer.add_tensor_info(tensor.name, shape, stored.dtype, int(np.prod(shape)) * stored.itemsize, tensor.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        values = tensor.read()
        if tensor.kind == GGMLQuantizationType.F16 and np.abs(values).max(initial=0) > _LARGEST_FLOAT16:
            raise TrainerError(f"{tensor.name} holds weights beyond the range of float16: choose bf16 or f32")
        writer.write_tensor_data(quantize(values, tensor.kind))


def _gguf_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER_NAMES[part]}.{kind}"


def _heads_in_pairs(config: ModelConfig, name: str) -> int:
    """The heads of a projection whose channels llama.cpp's `llama` wants in another order; 0 for all others."""
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    return heads.get(name.split(".")[-2], 0) if config.family == "llama" else 0


def _in_pairs(weight: Matrix, num_heads: int) -> Matrix:
    """Rows with the two channels that rotate together side by side, which Hugging Face has half a head apart."""
    if not num_heads:
        return weight
    halves = weight.reshape(num_heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def _add_chat_template(writer: GGUFWriter, model: ModelDescription) -> None:
    file = read_templates(model.path)
    if file is not None:
        writer.add_chat_template(file.templates[file.choose(with_tools=False)])
