"""What `intrinsics` declares of threads, for Numba: imported only to compile."""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from services.inference.engine.runner.cpu.kernels.intrinsics import CACHE_LINE
from services.inference.engine.runner.cpu.kernels.vectors_llvm import HALF_WORD, WORD, offset, word
from shared.kernels.llvm import address, call

_SPINS = 4000  # polls before the core is yielded to another thread


@intrinsic
def barrier(typing_context, state, num_threads):
    """See `intrinsics`.

    The last to arrive clears the number of arrivals and then announces the next generation, for which the others wait.
    """

    def generate(context, builder, signature, arguments):
        state, num_threads = arguments
        arrivals = address(context, builder, signature.args[0], state, word(0), WORD)
        generation = offset(builder, arrivals, CACHE_LINE)
        ours = builder.load_atomic(generation, "acquire", 8)
        arrived = builder.add(builder.atomic_rmw("add", arrivals, word(1), "acq_rel"), word(1))
        with builder.if_else(builder.icmp_signed("==", arrived, num_threads)) as (is_last, others):
            with is_last:
                builder.store_atomic(word(0), arrivals, "monotonic", 8)
                builder.store_atomic(builder.add(ours, word(1)), generation, "release", 8)
            with others:
                _wait_for_change(builder, generation, ours)
        return context.get_dummy_value()

    return types.void(state, types.int64), generate


def _wait_for_change(builder, generation, ours) -> None:
    entry = builder.block
    wait, go_on = builder.append_basic_block("wait"), builder.append_basic_block("go_on")
    builder.branch(wait)
    builder.position_at_end(wait)
    spins = builder.phi(WORD)
    spins.add_incoming(word(0), entry)
    _pause(builder)
    with builder.if_then(builder.icmp_signed(">", spins, word(_SPINS)), likely=False):
        call(builder, "sched_yield", HALF_WORD)
    spins.add_incoming(builder.add(spins, word(1)), builder.block)
    is_same = builder.icmp_signed("==", builder.load_atomic(generation, "acquire", 8), ours)
    builder.cbranch(is_same, wait, go_on)
    builder.position_at_end(go_on)


def _pause(builder) -> None:
    """Emit the processor's hint for spin loops, where it has one."""
    triple = llvm.get_process_triple()
    if "x86" in triple:
        call(builder, "llvm.x86.sse2.pause", ir.VoidType())
    elif "aarch64" in triple or "arm64" in triple:
        call(builder, "llvm.aarch64.hint", ir.VoidType(), ir.Constant(HALF_WORD, 1))  # YIELD
