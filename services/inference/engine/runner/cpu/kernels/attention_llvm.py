"""What `intrinsics` declares of attention, for Numba: imported only to compile.

It is written in LLVM's portable vector types, in the order of operations that `intrinsics` promises.
"""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from services.inference.engine.runner.cpu.kernels.intrinsics import CHAINS, LANES, TILE
from services.inference.engine.runner.cpu.kernels.vectors_llvm import (
    BYTE,
    FLOAT,
    ZERO,
    Loop,
    load,
    offset,
    store,
    word,
)
from shared.kernels.llvm import SECOND_CACHE, address, broadcast, multiply_add, prefetch
from shared.kernels.vector_code import exponential, fold, lanes_below, splat


@intrinsic
def dot_keys(typing_context, q, queries, keys, blocks, ahead, depth, scores, targets):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        q, queries, keys, blocks, ahead, depth, scores, targets = arguments
        kinds = signature.args

        def addresses(number, array, indices):
            return [
                address(context, builder, kinds[number], array, index, FLOAT)
                for index in unpack_tuple(builder, indices)
            ]

        loop_queries, loop_blocks = addresses(0, q, queries), addresses(2, keys, blocks)
        loop = Loop(builder, [ZERO] * len(loop_queries))
        row = builder.mul(loop.index, word(LANES))
        totals = []
        for query, block, total in zip(loop_queries, loop_blocks, loop.state, strict=True):
            start = offset(builder, block, row)
            prefetch(builder, builder.bitcast(offset(builder, start, ahead), BYTE.as_pointer()), SECOND_CACHE)
            channel = broadcast(builder, builder.load(offset(builder, query, loop.index)), LANES)
            totals.append(multiply_add(builder, load(builder, start), channel, total))
        loop.close(depth, totals)
        for target, total in zip(addresses(6, scores, targets), totals, strict=True):
            store(builder, total, target)
        return context.get_dummy_value()

    return types.void(q, queries, keys, blocks, types.int64, types.int64, scores, targets), generate


@intrinsic
def softmax(typing_context, scores, index, count):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        scores, index, count = arguments
        start = address(context, builder, signature.args[0], scores, index, FLOAT)

        def scores_at(place):
            is_there = lanes_below(builder, builder.sub(count, place))
            return is_there, load(builder, offset(builder, start, place))

        def larger(a, b):  # where neither is, as with NaN, the second: a row without numbers gets none
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        loop = Loop(builder, [splat(float("-inf"))], LANES)
        is_there, vector = scores_at(loop.index)
        largest = builder.select(is_there, larger(loop.state[0], vector), loop.state[0])
        loop.close(count, [largest])
        peak = broadcast(builder, fold(builder, largest, larger), LANES)
        loop = Loop(builder, [ZERO], LANES)
        is_there, vector = scores_at(loop.index)
        share = builder.select(is_there, exponential(builder, builder.fsub(vector, peak)), ZERO)
        store(builder, share, offset(builder, start, loop.index))
        total = builder.fadd(loop.state[0], share)
        loop.close(count, [total])
        return fold(builder, total, builder.fadd)

    return types.float32(scores, types.int64, types.int64), generate


@intrinsic
def dot_tile(typing_context, q, index, keys, blocks, depth, scores, target):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        q, index, keys, blocks, depth, scores, target = arguments
        q_kind, _, keys_kind, _, _, scores_kind, _ = signature.args
        values, stride = unpack_tuple(builder, q)
        first_query = address(context, builder, q_kind.types[0], values, index, FLOAT)
        queries = [offset(builder, first_query, builder.mul(stride, word(row))) for row in range(TILE)]
        blocks = [address(context, builder, keys_kind, keys, place, FLOAT) for place in unpack_tuple(builder, blocks)]
        loop = Loop(builder, [ZERO] * (TILE * len(blocks)))
        start = builder.mul(loop.index, word(LANES))
        channels = [load(builder, offset(builder, block, start)) for block in blocks]
        totals = []
        for row, query in enumerate(queries):
            number = broadcast(builder, builder.load(offset(builder, query, loop.index)), LANES)
            sums = loop.state[row * len(blocks) : (row + 1) * len(blocks)]
            totals += [
                multiply_add(builder, channel, number, total) for channel, total in zip(channels, sums, strict=True)
            ]
        loop.close(depth, totals)
        values, stride = unpack_tuple(builder, scores)
        first_target = address(context, builder, scores_kind.types[0], values, target, FLOAT)
        for place, total in enumerate(totals):
            row, block = divmod(place, len(blocks))
            row_target = offset(builder, first_target, builder.mul(stride, word(row)))
            store(builder, total, offset(builder, row_target, block * LANES))
        return context.get_dummy_value()

    return types.void(q, types.int64, keys, blocks, types.int64, scores, types.int64), generate


def _mix_values(vectors: int, rows: int):
    """For some queries in a row; each sees one row of values more."""

    def mix(typing_context, scratch, shares, sums, count, values, value, ahead, depth):
        def generate(context, builder, signature, arguments):
            scratch, shares, sums, count, values, value, ahead, depth = arguments
            kinds = signature.args
            share, share_stride = unpack_tuple(builder, shares)
            total, total_stride = unpack_tuple(builder, sums)
            first_share = address(context, builder, kinds[0], scratch, share, FLOAT)
            shares = [offset(builder, first_share, builder.mul(share_stride, word(row))) for row in range(rows)]
            start = address(context, builder, kinds[4], values, value, FLOAT)
            slots = []
            for row in range(rows):
                first = builder.add(total, builder.mul(total_stride, word(row)))
                of_row = address(context, builder, kinds[0], scratch, first, FLOAT)
                slots += [offset(builder, of_row, LANES * number) for number in range(CHAINS)]

            def add_values(*, all_there: bool):
                # As many tokens in a pass as there are chains, or more where that fits into registers.
                step_by = CHAINS if rows == 1 else CHAINS // vectors
                tokens = Loop(builder, [load(builder, slot) for slot in slots], step_by)
                totals = list(tokens.state)
                for step in range(step_by):
                    token = builder.add(tokens.index, word(step))
                    place = offset(builder, start, builder.mul(depth, token))
                    numbers = [load(builder, offset(builder, place, vector * LANES)) for vector in range(vectors)]
                    if rows == 1:
                        for vector in range(vectors):
                            later = offset(builder, offset(builder, place, vector * LANES), ahead)
                            prefetch(builder, builder.bitcast(later, BYTE.as_pointer()), SECOND_CACHE)
                    for row in range(rows):
                        share = broadcast(builder, builder.load(offset(builder, shares[row], token)), LANES)
                        seen_values = numbers
                        if not all_there:  # what lies there may be anything, and 0 times NaN is NaN
                            seen = builder.icmp_signed("<", token, builder.add(count, word(row)))
                            seen_values = [builder.select(seen, number, ZERO) for number in numbers]
                        for vector, number in enumerate(seen_values):
                            chain = row * CHAINS + step * vectors % CHAINS + vector
                            totals[chain] = multiply_add(builder, number, share, totals[chain])
                tokens.close(word(LANES), totals)
                for slot, total in zip(slots, totals, strict=True):
                    store(builder, total, slot)

            is_full = builder.icmp_signed(">=", count, word(LANES))
            with builder.if_else(is_full) as (full, partial):
                with full:
                    add_values(all_there=True)
                with partial:
                    add_values(all_there=False)
            return context.get_dummy_value()

        number = types.int64
        return types.void(scratch, shares, sums, number, values, number, number, number), generate

    return intrinsic(mix)


mix_values_1 = _mix_values(1, 1)
mix_values_2 = _mix_values(2, 1)
mix_values_4 = _mix_values(4, 1)
mix_tile_1 = _mix_values(1, TILE)
mix_tile_2 = _mix_values(2, TILE)
mix_tile_4 = _mix_values(4, TILE)
