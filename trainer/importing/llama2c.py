"""llama2.c's `.bin` files, versions 0 to 2, as its export.py writes them (https://github.com/karpathy/llama2.c)."""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.lm.config import ModelConfig
from shared.lm.errors import ModelConfigError
from shared.lm.rope_config import RopeConfig
from shared.system.regular_file import open_regular
from trainer.errors import TrainerError
from trainer.importing.foreign import ForeignModel, in_halves
from trainer.importing.names import hf_name
from trainer.importing.reference import Reference, plain_frequencies

_MAGIC = 0x616B3432
_HEADER = struct.Struct("<7i")  # dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, max_seq_len
_HEADER_BYTES = 256  # from version 1 on
_THETA, _EPS = 10_000.0, 1e-5  # of its model.py; no version stores them
_MATRICES = ("query", "key", "value", "attention_output", "gate", "down", "up")
_NORMS = ("attention_norm", "feed_forward_norm")
_TABLE_TOLERANCE = 1e-3


@dataclass(frozen=True)
class _Header:
    version: int
    config: ModelConfig
    group_size: int  # of version 2
    start: int  # where the weights begin


def read_llama2c(path: Path) -> ForeignModel:
    """Read a file.

    Raises:
        TrainerError: It is not such a file, is cut off or too long, or its RoPE is not the usual one.
    """
    try:
        with open_regular(path) as file:
            header = _read_header(path, file)
            weights = _read_weights(path, file, header)
    except OSError as error:
        raise TrainerError(f"{path}: cannot be read: {error.strerror or error}") from error
    config = header.config
    return ForeignModel(
        format=f"llama2.c, version {header.version}",
        config=config,
        weights={hf_name(*place): _ours(place[0], weight, config) for place, weight in weights.items()},
        theirs=str,
        logits=Reference(
            weights=lambda part, layer=None: weights.get((part, layer)),
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            norm_eps=_EPS,
            frequencies=plain_frequencies(_THETA, config.head_dim),
            neighbors=True,
        ).logits,
        notes=[f"the weights were stored in groups of {header.group_size} int8 with a scale each"]
        * (header.version == 2),
    )


_Weights = dict[tuple[str, int | None], Tensor]


def _ours(part: str, weight: Tensor, config: ModelConfig) -> Tensor:
    heads = {"query": config.num_heads, "key": config.num_kv_heads}.get(part)
    return weight if heads is None else in_halves(weight, heads)


def _read_header(path: Path, file: BinaryIO) -> _Header:
    """Read the sizes; the file's own size must be what follows from them, so that no more is ever allocated."""
    start = file.read(_HEADER_BYTES)
    if len(start) < _HEADER.size:
        raise TrainerError(f"{path}: not a llama2.c model: {len(start)} bytes, header needs {_HEADER.size}")
    magic, version = struct.unpack_from("<Ii", start)
    if magic != _MAGIC:
        fields = _HEADER.unpack_from(start)
        return _checked(path, file, _Header(0, _config(path, fields, tied=fields[5] > 0), 0, _HEADER.size))
    if version not in (1, 2):
        raise TrainerError(
            f"{path}: version {version} of llama2.c's format; 0 (without a magic number), 1 and 2 are known"
        )
    if len(start) < _HEADER_BYTES:
        raise TrainerError(f"{path}: was cut off inside its header of {_HEADER_BYTES} bytes")
    fields = _HEADER.unpack_from(start, 8)
    shared, group_size = struct.unpack_from("<Bi", start, 8 + _HEADER.size)
    if shared > 1 or fields[5] < 0:
        raise TrainerError(f"{path}: the header is damaged: its flag of a shared classifier is {shared}")
    header = _Header(version, _config(path, fields, tied=shared == 1), group_size, _HEADER_BYTES)
    if version == 2:
        sizes = [prod(shape) for _, shape in _matrices(header.config)]
        if group_size < 1 or any(size % group_size for size in sizes):
            raise TrainerError(f"{path}: groups of {group_size} weights do not divide its matrices")
    return _checked(path, file, header)


def _config(path: Path, fields: tuple[Any, ...], *, tied: bool) -> ModelConfig:
    dim, hidden, layers, heads, kv_heads, vocab, length = fields
    if heads < 1 or dim < 1 or dim % heads:
        raise TrainerError(
            f"{path}: not a model of llama2.c, or damaged: its header says a width of {dim} with {heads} heads"
        )
    try:
        return ModelConfig(
            vocab_size=abs(vocab),
            context_length=length,
            d_model=dim,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=dim // heads,
            d_ff=hidden,
            norm_eps=_EPS,
            tie_embeddings=tied,
            rope=RopeConfig(_THETA),
        )
    except ModelConfigError as error:
        raise TrainerError(f"{path}: not a model of llama2.c, or damaged: in its header, {error}") from error


def _checked(path: Path, file: BinaryIO, header: _Header) -> _Header:
    config = header.config
    matrices = sum(prod(shape) for _, shape in _matrices(config))
    norms = (2 * config.num_layers + 1) * config.d_model
    if header.version == 2:
        expected = matrices + 4 * (matrices // header.group_size) + 4 * norms
    else:
        tables = config.context_length * config.head_dim if header.version == 0 else 0
        expected = 4 * (matrices + norms + tables)
    found = os.fstat(file.fileno()).st_size - header.start
    if found != expected:
        kind = "cut off" if found < expected else "longer than that"
        raise TrainerError(
            f"{path}: its header says {config.num_layers} layers of width {config.d_model} and "
            f"{config.vocab_size:,} tokens, which are {expected:,} bytes, but {found:,} follow: it is {kind}, or not a "
            "model of llama2.c"
        )
    return header


def _matrices(config: ModelConfig) -> Iterator[tuple[tuple[str, int | None], tuple[int, int]]]:
    """All matrices in the order of versions 1 and 2, each with its shape."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = {
        "query": (queries, config.d_model),
        "key": (keys, config.d_model),
        "value": (keys, config.d_model),
        "attention_output": (config.d_model, queries),
        "gate": (config.d_ff, config.d_model),
        "down": (config.d_model, config.d_ff),
        "up": (config.d_ff, config.d_model),
    }
    yield ("embedding", None), (config.vocab_size, config.d_model)
    for part in _MATRICES:
        yield from (((part, layer), shapes[part]) for layer in range(config.num_layers))
    if not config.tie_embeddings:
        yield ("output", None), (config.vocab_size, config.d_model)


def _read_weights(path: Path, file: BinaryIO, header: _Header) -> _Weights:
    config, shapes = header.config, dict(_matrices(header.config))
    norm_shape = (config.d_model,)
    layers = range(config.num_layers)
    file.seek(header.start)
    weights: _Weights = {}

    def read(places: list[tuple[str, int | None]], group_size: int = 0) -> None:
        for place in places:
            shape = shapes.get(place, norm_shape)
            weights[place] = _read_groups(path, file, shape, group_size) if group_size else _read(path, file, shape)

    if header.version == 0:
        read([("embedding", None)])
        for part in ("attention_norm", *_MATRICES[:4], "feed_forward_norm", *_MATRICES[4:]):
            read([(part, layer) for layer in layers])
        read([("norm", None)])
        _check_tables(path, file, config)
        read([("output", None)] * (not config.tie_embeddings))
    else:
        read([(part, layer) for part in _NORMS for layer in layers] + [("norm", None)])
        read(list(shapes), header.group_size if header.version == 2 else 0)
    return weights


def _numbers(path: Path, file: BinaryIO, kind: str, count: int) -> NDArray[Any]:
    numbers = np.fromfile(file, kind, count)
    if len(numbers) < count:
        raise TrainerError(f"{path}: was cut off while it was read")
    return numbers


def _read(path: Path, file: BinaryIO, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(_numbers(path, file, "<f4", prod(shape)).reshape(shape))


def _read_groups(path: Path, file: BinaryIO, shape: tuple[int, ...], group_size: int) -> Tensor:
    """Version 2: the int8 of a whole matrix, then a scale for each group of them."""
    levels = _numbers(path, file, "<i1", prod(shape)).reshape(-1, group_size)
    scales = _numbers(path, file, "<f4", len(levels))
    return torch.from_numpy((levels * scales[:, None]).reshape(shape))


def _check_tables(path: Path, file: BinaryIO, config: ModelConfig) -> None:
    """Version 0 holds cosines and sines: they must be those of the usual base."""
    pairs = config.head_dim // 2
    angles = np.outer(np.arange(config.context_length), plain_frequencies(_THETA, config.head_dim))
    for name, expected in (("cosines", np.cos(angles)), ("sines", np.sin(angles))):
        table = _numbers(path, file, "<f4", config.context_length * pairs).reshape(-1, pairs)
        if not abs(table - expected).max() <= _TABLE_TOLERANCE:
            raise TrainerError(f"{path}: its {name} of RoPE are not those of base {_THETA:g}, which its run.c uses")
