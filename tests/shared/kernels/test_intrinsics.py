"""Operations that are generated in one of two ways, depending on the processor: both are compiled here."""

import numba
import numpy as np
import pytest
from llvmlite import binding

from shared.kernels.intrinsics import BLOCK, load_word
from shared.kernels.intrinsics_llvm import store_set_bits

HAS_COMPRESS = bool(binding.get_host_cpu_features().get("avx512vbmi2"))
MASKS = [0, 1, 1 << 63, (1 << 64) - 1, 0x8000_0000_0000_0001, 0x5555_5555_5555_5555, 0x0001_0000_FFFF_0003]


@pytest.mark.parametrize(
    "compress", [False, pytest.param(True, marks=pytest.mark.skipif(not HAS_COMPRESS, reason="no VPCOMPRESSB"))]
)
def test_set_bits_are_stored_in_order(monkeypatch: pytest.MonkeyPatch, *, compress: bool) -> None:
    monkeypatch.setattr("shared.kernels.intrinsics_llvm.llvm.has_feature", lambda name: compress)

    @numba.njit
    def store(out, mask):  # type: ignore[no-untyped-def]
        return store_set_bits(out, 3, np.uint64(mask), 1000)

    for mask in MASKS:
        out = np.full(BLOCK + 6, -1, np.int64)
        places = [place for place in range(BLOCK) if mask >> place & 1]
        assert store(out, np.uint64(mask)) == len(places)
        assert out[3 : 3 + len(places)].tolist() == [1000 + place for place in places]
        assert out[:3].tolist() == [-1] * 3
        assert out[-3:].tolist() == [-1] * 3


def test_plain_python_cannot_call_them() -> None:
    with pytest.raises(TypeError, match="load_word can be called in compiled code only"):
        load_word(np.zeros(8, np.uint8), 0)
