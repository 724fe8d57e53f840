"""Numbers that cross between Python and compiled code as words."""

import math

import pytest

from shared.kernels import types
from shared.kernels.compiling import _as_python, _bits_of


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -1e-30, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [types.float32, types.float64], ids=lambda kind: kind.name)
def test_a_float_is_its_bits(kind: types.Scalar, value: float) -> None:
    rounded = float(kind.dtype.type(value))
    bits = _bits_of(value, kind)
    assert bits == int(kind.dtype.type(value).view(f"uint{8 * kind.dtype.itemsize}"))
    back = _as_python(bits, kind)
    assert (back, math.copysign(1, back)) == (rounded, math.copysign(1, value))
