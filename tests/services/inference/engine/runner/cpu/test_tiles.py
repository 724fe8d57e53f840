"""AMX tiles: all around their instructions on any processor, and the instructions where there are any."""

import os
import platform
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.inference.engine.runner.cpu import tiles, weights
from services.inference.engine.runner.cpu.kernels.bfloat16 import round_rows
from services.inference.engine.runner.cpu.kernels.intrinsics import BFLOAT16, BFLOAT16_TILES, FLOAT16
from services.inference.engine.runner.cpu.kernels.layout import Rows
from services.inference.engine.runner.cpu.kernels.linear import MATRIX_WORDS
from services.inference.engine.runner.cpu.kernels.tiles import compiled_for_tiles, tile_panel
from shared.lm import Transformer
from tests.services.inference.engine.runner.cpu.amx_emulator import Emulator
from tests.services.inference.engine.runner.cpu.bfloat16_jit import compiled_product, some_products
from tests.services.inference.engine.runner.cpu.test_bfloat16 import numbers, product, reference, rounded, same_bits

is_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is x86's")
_PROCESSORS = {  # by LLVM's names, with the features that Numba compiles for
    "x86-64-v3": "+sse4.2,+avx,+avx2,+fma,+f16c,+bmi,+bmi2",
    "skylake-avx512": "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl",
    "sapphirerapids": "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl,"
    "+avx512bf16,+avx512vnni,+amx-tile,+amx-bf16,+amx-int8",
}


def compiling_for(name: str) -> dict[str, str]:
    return os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": _PROCESSORS[name]}


def test_tiles_compute_what_vectors_do() -> None:
    if not tiles.permitted():
        pytest.skip("this processor has no AMX tiles, or the system does not permit them")
    check_tiles(compiled_product(tile_panel, in_order=True))


@pytest.mark.slow
def test_all_but_the_instructions_computes_what_vectors_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses, strides, tails, loops and the configuration, with functions in the place of the instructions."""
    import llvmlite.binding as llvm
    from llvmlite import ir

    from services.inference.engine.runner.cpu.kernels import tiles_llvm
    from shared.kernels.llvm import call

    emulator = Emulator()
    for name, address in emulator.addresses().items():
        llvm.add_symbol(f"emulated_{name}", address)

    def emulated(builder: Any, name: str, *arguments: Any) -> None:
        operands = [ir.IntType(8)(value) if isinstance(value, int) else value for value in arguments]
        call(builder, f"emulated_{name}", ir.VoidType(), *operands)

    monkeypatch.setattr(tiles_llvm, "_tile", emulated)
    monkeypatch.setattr(tiles_llvm, "_has_tiles", lambda: True)
    check_tiles(compiled_product(tile_panel, in_order=True))
    assert emulator.faults == []
    assert emulator.counts["ldtilecfg"] == emulator.counts["tilerelease"] > 0


def check_tiles(by_tiles: Any) -> None:
    for rows in (1, 4, 15, 16, 17, 32, 33, 50):
        values, x = numbers(rows, 64, 96), numbers(rows + 1, rows, 96)
        x[rows // 2, 5] = np.nan if rows == 33 else 1e-20
        assert same_bits(by_tiles(values, x), product(values, x))
        start = numbers(rows + 2, rows, 64)
        assert same_bits(by_tiles(values, x, start), product(values, x, add_to=start))
    assert same_bits(some_products(by_tiles), some_products(reference))


@is_x86
@pytest.mark.slow
def test_code_for_processors_with_tiles_has_their_instructions() -> None:
    """Compiled here for one of them; nothing runs."""
    program = """
from tests.services.inference.engine.runner.cpu.bfloat16_jit import dispatcher
from services.inference.engine.runner.cpu.kernels.tiles import tile_panel
multiply = dispatcher(tile_panel)
print(multiply.inspect_asm(multiply.signatures[0]))
"""
    run = [sys.executable, "-c", program]
    assembly = subprocess.run(
        run, env=compiling_for("sapphirerapids"), capture_output=True, text=True, check=True
    ).stdout
    found = Counter(re.findall(r"^\s+((?:ld)?tile\w+|tdp\w+)", assembly, re.MULTILINE))
    assert set(found) == {"ldtilecfg", "tilezero", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease"}
    assert found["ldtilecfg"] == found["tilerelease"]
    assert found["tdpbf16ps"] >= 2 + 4


@is_x86
@pytest.mark.slow
@pytest.mark.parametrize("name", ["x86-64-v3", "skylake-avx512"])
def test_older_processors_compute_the_same_bits(name: str, tmp_path: Path) -> None:
    """Their code runs on newer ones too: AVX2, and AVX-512 without instructions for bfloat16."""
    missing = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} if "avx512" in name else {"avx2", "fma"}
    missing -= set(Path("/proc/cpuinfo").read_text().split())
    if missing:
        pytest.skip(f"this processor lacks {', '.join(missing)}, so it cannot run code for {name}")
    program = [sys.executable, "-m", "tests.services.inference.engine.runner.cpu.bfloat16_jit", str(tmp_path / "bits")]
    subprocess.run(program, env=compiling_for(name), check=True)
    found = np.fromfile(tmp_path / "bits", np.float32)
    assert same_bits(found, some_products(product))
    assert same_bits(found, some_products(reference))


def test_rows_for_tiles_lie_in_order() -> None:
    rows, depth = 21, 64
    x = numbers(0, rows, depth)
    found = np.full(2 * 16 * depth // 2, np.nan, np.float32)
    for thread in range(3):
        round_rows(thread, 3, Rows(x.reshape(-1).copy(), depth), rows, depth, found, True)
    halves = found.view(np.uint16).reshape(2, depth // 32, 16, 32).transpose(0, 2, 1, 3).reshape(32, depth)[:rows]
    assert np.array_equal((halves.astype(np.uint32) << 16).view(np.float32), rounded(x))


@pytest.fixture
def ask_again() -> Any:
    tiles.permitted.cache_clear()
    yield
    tiles.permitted.cache_clear()


@pytest.mark.usefixtures("ask_again")
@pytest.mark.parametrize(("answer", "expected"), [(0, True), (-1, False)])
def test_the_system_is_asked_once_and_its_answer_decides(
    answer: int, expected: bool, monkeypatch: pytest.MonkeyPatch, models: dict[str, Transformer]
) -> None:
    calls = []

    def syscall(*arguments: int) -> int:
        calls.append(arguments)
        return answer

    monkeypatch.setattr(tiles, "compiled_for_tiles", lambda: True)
    monkeypatch.setattr(tiles.ctypes, "CDLL", lambda _: SimpleNamespace(syscall=syscall))
    monkeypatch.setattr(tiles.sys, "platform", "linux")
    assert [tiles.permitted() for _ in range(3)] == [expected] * 3
    assert calls == [(158, 0x1023, 18)]  # arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    model = models["llama3"]
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    for kind, multiplied_as in ((BFLOAT16, BFLOAT16_TILES if expected else BFLOAT16), (FLOAT16, FLOAT16)):
        matrices = weights.pack_weights(model.config, tensors, kind).matrices.reshape(-1, MATRIX_WORDS)
        assert set(matrices[:, 3]) == {multiplied_as}


@pytest.mark.usefixtures("ask_again")
def test_without_tiles_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "compiled_for_tiles", lambda: False)
    monkeypatch.setattr(tiles.ctypes, "CDLL", None)
    assert not tiles.permitted()


@is_x86
@pytest.mark.usefixtures("ask_again")
def test_a_processor_without_tiles_is_refused_by_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    if compiled_for_tiles():
        pytest.skip("this processor has AMX tiles")
    monkeypatch.setattr(tiles, "compiled_for_tiles", lambda: True)
    assert not tiles.permitted()
