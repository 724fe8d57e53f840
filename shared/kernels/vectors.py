"""Vectors of LANES numbers in float32, as kernels compute with them; `vectors_llvm` generates the operations.

Vectors are added, subtracted, multiplied and divided by Python's operators, with each other and with numbers. Arrays
are of float32 or, as numbers of 16 bits without sign, of bfloat16. Indices are not checked.

    load(array, index, count)                the numbers from array[index] on; lanes from `count` on are 0
    store(array, index, vector, count)       write the lanes below `count`, rounded to nearest, ties to even
    repeat(number)                           the same number in all lanes
    exponential(vector)                      exp of each lane, see `vectors_llvm`
    larger(vector, vector)                   the larger one in each lane
    first_lanes(vector, count, others)       `vector` in the lanes below `count`, `others` in those from there on
    total(vector), largest(vector)           of all lanes, in pairs of halves
"""

from shared.kernels.intrinsics import Intrinsic

_MODULE = "shared.kernels.vectors_llvm"

load = Intrinsic("load", _MODULE)
store = Intrinsic("store", _MODULE)
repeat = Intrinsic("repeat", _MODULE)
exponential = Intrinsic("exponential", _MODULE)
larger = Intrinsic("larger", _MODULE)
first_lanes = Intrinsic("first_lanes", _MODULE)
total = Intrinsic("total", _MODULE)
largest = Intrinsic("largest", _MODULE)
