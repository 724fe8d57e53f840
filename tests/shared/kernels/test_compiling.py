"""How Python calls kernels."""

import ctypes
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from shared.bpe.kernels.boundaries import SpecialTokens, find_special
from shared.bpe.kernels.encoding import encode_string
from shared.bpe.kernels.pretoken_keys import hash_bytes
from shared.bpe.kernels.utf8 import first_invalid
from shared.kernels import object_file, types
from shared.kernels.compiling import BoundKernel, Kernel, WordBlock

TEXT = np.frombuffer(b"ab\xff, and more than eight bytes", np.uint8)


def hash_in_python(data: bytes) -> int:
    """As `hash_bytes`, with Python's integers."""
    low, word = 0x9E3779B97F4A7C15, (1 << 64) - 1
    hashed = len(data)
    for start in range(0, len(data), 8):
        high = int.from_bytes(data[start : start + 8], "little") * 0xC2B2AE3D27D4EB4F
        mixed = ((hashed ^ hashed >> 32) * low + high) & word
        hashed = (mixed ^ mixed >> 29) * low & word
    return hashed


def test_results_are_numbers_of_their_type() -> None:
    assert first_invalid(TEXT, 0, 2) == -1
    hashes = [hash_bytes(TEXT, begin, 9) for begin in range(10)]
    assert hashes == [hash_in_python(TEXT[begin : begin + 9].tobytes()) for begin in range(10)]
    assert max(hashes) >> 63 == 1, "one has the bit that is the sign of other types"
    assert find_special(TEXT, 0, 20, SpecialTokens(np.frombuffer(b"and", np.uint8), np.array([0, 3]))) == (5, 3)


def test_a_prepared_call_runs_again_with_what_has_changed() -> None:
    text = TEXT.copy()
    call = first_invalid.prepare(text, 0, 3)
    assert call.run() == call.run() == 2
    text[2] = ord("c")
    assert call.run() == -1
    call.arguments.end = 4
    text[3] = 0x80
    assert call.run() == call.results.value == 3


def test_a_bound_kernel_takes_the_other_arguments_with_each_call() -> None:
    bound = BoundKernel(find_special, TEXT)
    for begin, end, special in ((0, 20, b"and"), (7, len(TEXT), TEXT[9:12].tobytes()), (0, 2, b"a longer one")):
        specials = SpecialTokens(np.frombuffer(special, np.uint8), np.array([0, len(special)]))
        found = bound(begin, end, specials)
        assert found == find_special(TEXT, begin, end, specials)
        place = TEXT.tobytes().find(special, begin, end)
        assert found.begin == place or (place < 0 and found.length == 0)
    with pytest.raises(TypeError, match="takes a contiguous array of int64, not int32"):
        bound(0, 20, SpecialTokens(specials.text, specials.offsets.astype(np.int32)))
    with pytest.raises(TypeError, match="find_special expected 3 arguments, got 2"):
        bound(0, 20)


def test_arguments_and_results_have_names() -> None:
    specials = SpecialTokens(np.frombuffer(b"and", np.uint8), np.array([0, 3]))
    call = find_special.prepare(TEXT, 0, 20, specials)
    assert (call.arguments.begin, call.arguments.end) == (0, 20)
    assert (call.arguments.data_address, call.arguments.data_size) == (TEXT.ctypes.data, TEXT.size)
    assert call.arguments.specials_offsets_size == 2
    call.run_only()
    assert (call.results.begin, call.results.length) == (5, 3)
    call.arguments.end = 7
    assert call.run() == (call.results.begin, call.results.length) == (7, 0)
    with pytest.raises(AttributeError, match="ende"):
        call.arguments.ende = 8


def test_arguments_of_each_type_are_words() -> None:
    kinds = [*map(types.Scalar.named, ("bool", "uint8", "float32", "float64", "uint64", "int32", "int64"))]
    values = (True, 200, 1.5, -1e-30, (1 << 64) - 1, -3, -(1 << 63))
    block = WordBlock([(kind.dtype.name, kind) for kind in kinds])
    words = block.structure()
    assert ctypes.sizeof(words) == block.packer.size == 8 * len(kinds)
    block.packer.pack_into(words, 0, *values)
    assert tuple(getattr(words, kind.dtype.name) for kind in kinds) == values


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -1e-30, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_a_float_is_its_bits(name: str, value: float) -> None:
    kind = types.Scalar.named(name)
    rounded = kind.dtype.type(value)
    block = WordBlock([("value", kind)])
    packed = block.packer.pack(value)
    assert packed == rounded.tobytes().ljust(8, b"\0")
    back = block.structure.from_buffer_copy(packed).value
    assert (back, math.copysign(1, back)) == (float(rounded), math.copysign(1, value))


@pytest.mark.parametrize(
    "wrong", [b"ab", [1, 2], TEXT.astype(np.int64), TEXT[::2], None], ids=["bytes", "list", "dtype", "strides", "none"]
)
def test_what_is_no_such_array_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="first_invalid takes a contiguous array of uint8"):
        first_invalid(wrong, 0, 2)


def test_an_array_to_be_written_must_not_be_read_only() -> None:
    offsets = np.array([0, 3])
    offsets.setflags(write=False)
    with pytest.raises(TypeError, match="takes a contiguous array of int64"):
        find_special(TEXT, 0, 20, SpecialTokens(np.frombuffer(b"and", np.uint8), offsets))


def test_too_few_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="first_invalid expected 3 arguments, got 2"):
        first_invalid(TEXT, 0)


def test_threads_at_once_have_the_definition_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, both = Kernel(encode_string.function), threading.Barrier(2)
    file = object_file.of(kernel.package)

    def of(_package: str) -> object_file.ObjectFile:
        with suppress(threading.BrokenBarrierError):  # where one thread waits for the other's
            both.wait(1)
        return file

    monkeypatch.setattr(object_file, "of", of)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: kernel.definition, range(2))
    assert first is second is kernel.definition
