"""FEW or MANY numbers of 32 bits in registers of the processor; `lanes_llvm` generates the operations.

Numbers that are written one by one and then read together wait for each other in memory, but not in registers.

    load_few(data, index), load_many(data, index)   the numbers from data[index] on; indices are not checked
    with_lane(lanes, number, value)                 another value in one lane
    without(lanes, mask)                            all bits set in the lanes whose bits are set in a word
    least(lanes)                                    the least number
"""

from shared.kernels.intrinsics import Intrinsic

_MODULE = "shared.bpe.kernels.lanes_llvm"

FEW, MANY = 16, 64

load_few = Intrinsic("load_few", _MODULE)
load_many = Intrinsic("load_many", _MODULE)
with_lane = Intrinsic("with_lane", _MODULE)
without = Intrinsic("without", _MODULE)
least = Intrinsic("least", _MODULE)
