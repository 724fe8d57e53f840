"""What `intrinsics` declares of threads, for Numba: imported only to compile."""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from services.inference.engine.runner.cpu.kernels.vectors_llvm import HALF_WORD, WORD, word
from shared.kernels.llvm import address, call

_SPINS = 4000  # polls before the core is yielded to another thread


@intrinsic
def finish(typing_context, phases, index, done, items):
    """See `intrinsics`. What a thread has written before, all others see behind it."""

    def generate(context, builder, signature, arguments):
        phases, index, done, items = arguments
        count = address(context, builder, signature.args[0], phases, index, WORD)
        builder.atomic_rmw("add", count, done, "acq_rel")
        entry = builder.block
        check, wait, end = (builder.append_basic_block(name) for name in ("check", "wait", "end"))
        builder.branch(check)
        builder.position_at_end(check)
        spins = builder.phi(WORD)
        spins.add_incoming(word(0), entry)
        builder.cbranch(builder.icmp_signed("<", builder.load_atomic(count, "acquire", 8), items), wait, end)
        builder.position_at_end(wait)
        _pause(builder)
        with builder.if_then(builder.icmp_signed(">", spins, word(_SPINS)), likely=False):
            call(builder, "sched_yield", HALF_WORD)
        spins.add_incoming(builder.add(spins, word(1)), builder.block)
        builder.branch(check)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(phases, types.int64, types.int64, types.int64), generate


def _pause(builder) -> None:
    """Emit the processor's hint for spin loops, where it has one."""
    triple = llvm.get_process_triple()
    if "x86" in triple:
        call(builder, "llvm.x86.sse2.pause", ir.VoidType())
    elif "aarch64" in triple or "arm64" in triple:
        call(builder, "llvm.aarch64.hint", ir.VoidType(), ir.Constant(HALF_WORD, 1))  # YIELD
