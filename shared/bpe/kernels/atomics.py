"""Numbers of 64 bits that threads share; `atomics_llvm` generates the operations. Indices are not checked.

add(array, index, amount)        add to a number, and return what it was
claim(array, index, value)       write a value where there is 0; returns whether there was
publish(array, index, value)     write a value: a thread that observes it also sees all that was written before
observe(array, index)            what was published, or an older value
"""

from shared.kernels.intrinsics import Intrinsic

_MODULE = "shared.bpe.kernels.atomics_llvm"

add = Intrinsic("add", _MODULE)
claim = Intrinsic("claim", _MODULE)
publish = Intrinsic("publish", _MODULE)
observe = Intrinsic("observe", _MODULE)
