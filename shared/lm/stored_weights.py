"""Reading the weights of a model from safetensors files, verified. No torch, and nothing is ever unpickled."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from shared.lm.config import ModelConfig
from shared.lm.errors import ModelFolderError
from shared.lm.weight_files import INDEX_FILE, find_weight_files
from shared.lm.weight_shapes import EMBEDDING, OUTPUT, weight_shapes
from shared.system.checksums import ChecksumError, Checksums
from shared.system.errors import display_name
from shared.system.regular_file import open_regular
from shared.system.thread_pool import WorkPool

# NumPy has no bfloat16: its bits are read as uint16.
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
}
_WRAPPER_PREFIXES = ("_orig_mod.", "module.")


class _Stored(NamedTuple):
    """The location of a tensor: its data begin at byte `begin` of the file."""

    file: Path
    stream: BinaryIO
    dtype: str
    shape: tuple[int, ...]
    begin: int


class StoredWeights(Mapping[str, NDArray[np.float32]]):
    """The weights in a model folder by Hugging Face's names; each access reads one from the file, as float32.

    Each result has memory of its own, so the caller decides how many weights are in memory at the same time. The
    files stay open until the end of the `with` block. Where the folder has checksums, a thread compares the files with
    them meanwhile (or the end of the block, if no thread can be started): once the block has ended without an error,
    the weights are verified.

    Args:
        folder: Holds `model.safetensors`, or `model.safetensors.index.json` and its shards.
        config: The architecture, which determines the keys: exactly the weights that it needs.

    Attributes:
        notes: What was ignored, as readable sentences.

    Raises:
        ModelFolderError: Names the file and the fault: missing, truncated or unlisted data; missing or unexpected
            tensors, or a wrong shape or dtype; an output projection that contradicts the config. When a weight is read:
            it is NaN or infinite. At the end of the block: a file differs from its checksum.
    """

    def __init__(self, folder: str | Path, config: ModelConfig) -> None:
        files, self.notes = find_weight_files(Path(folder))
        self._shapes = weight_shapes(config)
        with ExitStack() as streams:
            self._stored = _find_tensors(files, streams)
            self.notes += _ignore_obsolete(self._stored)
            if config.tie_embeddings and OUTPUT in self._stored:
                _check(self._stored, {**self._shapes, OUTPUT: self._shapes[EMBEDDING]}, files)
                self._check_tied_output()
            else:
                _check(self._stored, self._shapes, files)
            opened = {stored.file.name: stored.stream.fileno() for stored in self._stored.values()}
            checksums = _read_checksums(Path(folder))
            self._pool = streams.enter_context(WorkPool(2))
            self._verified = self._pool.submit(partial(_verify, checksums, opened), at_once=checksums.sums is not None)
            self._streams = streams.pop_all()

    def __enter__(self) -> "StoredWeights":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._streams:
            if error is None:
                self._pool.result(self._verified)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        raw = self.raw(name)
        if self.dtype(name) == "BF16":  # the upper half of a float32
            numbers = (raw.astype(np.uint32) << 16).view(np.float32)
        else:
            with np.errstate(over="ignore"):  # it is checked below
                numbers = raw.astype(np.float32, copy=False)
        if not np.isfinite(numbers).all():
            was_finite = self.dtype(name) == "F64" and bool(np.isfinite(raw).all())
            raise self.not_finite(name, "float32", was_finite=was_finite)
        return numbers

    def dtype(self, name: str) -> str:
        """The stored dtype of a weight: "F64", "F32", "BF16" or "F16"."""
        return self._stored[name].dtype

    def raw(self, name: str) -> NDArray[Any]:
        """Read a weight as it is stored; bfloat16 as its bits, in uint16."""
        stored = self._stored[name]
        stored.stream.seek(stored.begin)
        size = math.prod(stored.shape)
        numbers = np.fromfile(stored.stream, _DTYPES[stored.dtype], size)
        if len(numbers) < size:
            raise ModelFolderError(f"{stored.file}: was truncated while it was read")
        return numbers.reshape(stored.shape)

    def not_finite(self, name: str, dtype: str, *, was_finite: bool) -> ModelFolderError:
        """The error for a weight that is NaN or infinite in `dtype`; `was_finite` if the conversion made it so."""
        fault = f"weights beyond the range of {dtype}" if was_finite else "NaN or infinite weights"
        return ModelFolderError(f"{self._stored[name].file}: {name} holds {fault}")

    def _check_tied_output(self) -> None:
        if not np.array_equal(self[OUTPUT], self[EMBEDDING]):
            raise ModelFolderError(
                f"{self._stored[OUTPUT].file}: {OUTPUT} differs from {EMBEDDING}, "
                'but config.json says "tie_word_embeddings": true'
            )


def _read_checksums(folder: Path) -> Checksums:
    try:
        return Checksums.read(folder)
    except ChecksumError as error:
        raise ModelFolderError(str(error)) from error


def _verify(checksums: Checksums, opened: Mapping[str, int]) -> None:
    """Compare open files, by name, with the folder's checksums."""
    try:
        for name, descriptor in opened.items():
            checksums.verify(name, descriptor)
    except ChecksumError as error:
        raise ModelFolderError(str(error)) from error


def _find_tensors(files: Mapping[Path, set[str] | None], streams: ExitStack) -> dict[str, _Stored]:
    """Return the location of each tensor; `streams` closes the files."""
    found: dict[str, _Stored] = {}
    for file, listed in files.items():
        tensors = _open(file, streams)
        if listed is not None and (absent := listed - tensors.keys()):
            raise ModelFolderError(f"{file}: {INDEX_FILE} lists {_list(absent)}, which the file does not hold")
        found |= {name: tensors[name] for name in (tensors if listed is None else listed)}
    return found


def _open(file: Path, streams: ExitStack) -> dict[str, _Stored]:
    """Return the tensors of a file. safetensors validates it; the data are read here, since NumPy has no bfloat16."""
    try:
        # First, since safetensors reports every file that it cannot open as missing.
        stream = streams.enter_context(open_regular(file))
    except FileNotFoundError:
        raise ModelFolderError(f"{file}: this shard is missing, but {INDEX_FILE} lists it") from None
    except OSError as error:
        raise ModelFolderError(f"{file} cannot be read: {error.strerror}") from error
    try:
        with safe_open(file, framework="numpy"):
            pass
        header_size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(header_size))
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFolderError(
            f"{file}: truncated, damaged or not a safetensors file ({display_name(str(error))})"
        ) from error
    header.pop("__metadata__", None)
    return {
        name: _Stored(file, stream, entry["dtype"], tuple(entry["shape"]), 8 + header_size + entry["data_offsets"][0])
        for name, entry in header.items()
    }


def _ignore_obsolete(stored: dict[str, _Stored]) -> tuple[str, ...]:
    """Drop the RoPE tables of older exports, which follow from the config."""
    obsolete = [name for name in stored if name.endswith(".rotary_emb.inv_freq")]
    for name in obsolete:
        del stored[name]
    return (f"{len(obsolete)} rotary_emb.inv_freq tensors were ignored: config.json has them",) if obsolete else ()


def _check(stored: Mapping[str, _Stored], expected: Mapping[str, tuple[int, ...]], files: Iterable[Path]) -> None:
    """Compare names, shapes and dtypes without reading data."""
    if wrapped := [name for name in stored if name.startswith(_WRAPPER_PREFIXES)]:
        raise ModelFolderError(
            f"{stored[wrapped[0]].file}: {_list(wrapped)}: the names have the prefix of a wrapper "
            "(torch.compile or DistributedDataParallel): save the module inside the wrapper"
        )
    first, *others = files
    places = f"{first} and {len(others)} more" if others else str(first)
    if missing := expected.keys() - stored.keys():
        raise ModelFolderError(f"{places}: the weights lack {_list(missing)}, which config.json requires")
    if unexpected := stored.keys() - expected.keys():
        raise ModelFolderError(f"{places}: the weights hold {_list(unexpected)}, which config.json does not have")
    for name, shape in expected.items():
        file, _, dtype, stored_shape, _ = stored[name]
        if stored_shape != shape:
            raise ModelFolderError(
                f"{file}: {name} has the shape {list(stored_shape)}, but config.json requires {list(shape)}"
            )
        if dtype not in _DTYPES:
            raise ModelFolderError(
                f"{file}: {name} has the dtype {dtype}, but weights must be one of {', '.join(_DTYPES)}"
            )


def _list(names: Iterable[str]) -> str:
    """Name up to four tensors."""
    ordered = sorted(names)
    more = f" and {len(ordered) - 4} more" if len(ordered) > 4 else ""
    return ", ".join(map(display_name, ordered[:4])) + more
