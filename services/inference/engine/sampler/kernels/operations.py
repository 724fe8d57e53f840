"""What kernels here need beside `shared.kernels.intrinsics`; `operations_llvm` generates it.

multiply_add(a, b, c)   a * b + c, rounded once where the processor can
sum_any_order(a, b)     a + b, of whose repetition LLVM may choose the order: the same one whenever the code runs
bits(x), from_bits(n)   the 64 bits of a float, and the float with these bits
bits32(x), from_bits32  the same for 32 bits
equal_mask(a, i, n)     bit k is set where a[i + k] == n, for the 64 numbers of 32 bits from i on
"""

from shared.kernels.intrinsics import Intrinsic

_LLVM = "services.inference.engine.sampler.kernels.operations_llvm"

multiply_add = Intrinsic("multiply_add", _LLVM)
sum_any_order = Intrinsic("sum_any_order", _LLVM)
bits = Intrinsic("bits", _LLVM)
from_bits = Intrinsic("from_bits", _LLVM)
bits32 = Intrinsic("bits32", _LLVM)
from_bits32 = Intrinsic("from_bits32", _LLVM)
equal_mask = Intrinsic("equal_mask", _LLVM)
