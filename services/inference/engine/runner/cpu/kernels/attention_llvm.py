"""What `intrinsics` declares of attention, for Numba: imported only to compile.

It is written in LLVM's portable vector types, in the order of operations that `intrinsics` promises.
"""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

from numba import types
from numba.core import cgutils
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from services.inference.engine.runner.cpu.kernels.intrinsics import CHAINS, LANES, TILE
from services.inference.engine.runner.cpu.kernels.vectors_llvm import (
    BYTE,
    FLOAT,
    ZERO,
    Loop,
    for_kind,
    load,
    offset,
    store,
    word,
)
from shared.kernels.llvm import SECOND_CACHE, address, broadcast, has_feature, multiply_add, prefetch
from shared.kernels.vector_code import exponential, fold, lanes_below, splat


def _prefetch(builder, pointer):
    """Request keys or values of the next block, but not with AVX-512.

    Half as many instructions load a line then, so that those which the processor has begun reach as far ahead by
    themselves, and prefetches only take room among them.
    """
    if not has_feature("avx512f"):
        prefetch(builder, pointer, SECOND_CACHE)


@intrinsic
def dot_keys(typing_context, q, queries, cache, blocks, ahead, depth, scores, targets):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        q, queries, cache, blocks, ahead, depth, scores, targets = arguments
        q_kind, _, cache_kind, _, _, _, scores_kind, _ = signature.args
        memory, kind, _ = unpack_tuple(builder, cache)

        def addresses(array_kind, array, indices, pointee):
            return [
                address(context, builder, array_kind, array, index, pointee) for index in unpack_tuple(builder, indices)
            ]

        queries = addresses(q_kind, q, queries, FLOAT)
        blocks = addresses(cache_kind.types[0], memory, blocks, BYTE)
        targets = addresses(scores_kind, scores, targets, FLOAT)

        def dot(numbers):
            loop = Loop(builder, [ZERO] * len(queries))
            row = builder.mul(loop.index, word(LANES * numbers.size))
            totals = []
            for query, block, total in zip(queries, blocks, loop.state, strict=True):
                start = offset(builder, block, row)
                _prefetch(builder, offset(builder, start, ahead))
                channel = broadcast(builder, builder.load(offset(builder, query, loop.index)), LANES)
                totals.append(multiply_add(builder, numbers.load(builder, start), channel, total))
            loop.close(depth, totals)
            for target, total in zip(targets, totals, strict=True):
                store(builder, total, target)

        for_kind(builder, kind, dot)
        return context.get_dummy_value()

    return types.void(q, queries, cache, blocks, types.int64, types.int64, scores, targets), generate


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
def dot_tile(typing_context, q, index, cache, blocks, depth, scores, target):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        q, index, cache, blocks, depth, scores, target = arguments
        q_kind, _, cache_kind, _, _, scores_kind, _ = signature.args
        memory, kind, _ = unpack_tuple(builder, cache)
        values, stride = unpack_tuple(builder, q)
        first_query = address(context, builder, q_kind.types[0], values, index, FLOAT)
        queries = [offset(builder, first_query, builder.mul(stride, word(row))) for row in range(TILE)]
        blocks = [
            address(context, builder, cache_kind.types[0], memory, place, BYTE)
            for place in unpack_tuple(builder, blocks)
        ]
        values, score_stride = unpack_tuple(builder, scores)
        first_target = address(context, builder, scores_kind.types[0], values, target, FLOAT)

        def dot(numbers):
            loop = Loop(builder, [ZERO] * (TILE * len(blocks)))
            start = builder.mul(loop.index, word(LANES * numbers.size))
            channels = [numbers.load(builder, offset(builder, block, start)) for block in blocks]
            totals = []
            for row, query in enumerate(queries):
                number = broadcast(builder, builder.load(offset(builder, query, loop.index)), LANES)
                sums = loop.state[row * len(blocks) : (row + 1) * len(blocks)]
                totals += [
                    multiply_add(builder, channel, number, total) for channel, total in zip(channels, sums, strict=True)
                ]
            loop.close(depth, totals)
            for place, total in enumerate(totals):
                row, block = divmod(place, len(blocks))
                row_target = offset(builder, first_target, builder.mul(score_stride, word(row)))
                store(builder, total, offset(builder, row_target, block * LANES))

        for_kind(builder, kind, dot)
        return context.get_dummy_value()

    return types.void(q, types.int64, cache, blocks, types.int64, scores, types.int64), generate


def _mix_values(vectors: int, rows: int):
    """For some queries in a row; each sees one row of values more."""

    def mix(typing_context, scratch, shares, sums, count, cache, value, ahead, depth):
        def generate(context, builder, signature, arguments):
            scratch, shares, sums, count, cache, value, ahead, depth = arguments
            kinds = signature.args
            memory, kind, number_bytes = unpack_tuple(builder, cache)
            share, share_stride = unpack_tuple(builder, shares)
            total, total_stride = unpack_tuple(builder, sums)
            first_share = address(context, builder, kinds[0], scratch, share, FLOAT)
            shares = [offset(builder, first_share, builder.mul(share_stride, word(row))) for row in range(rows)]
            start = address(context, builder, kinds[4].types[0], memory, value, BYTE)
            slots = []
            for row in range(rows):
                first = builder.add(total, builder.mul(total_stride, word(row)))
                of_row = address(context, builder, kinds[0], scratch, first, FLOAT)
                slots += [offset(builder, of_row, LANES * number) for number in range(CHAINS)]

            def add_values(size, load_vector, *, all_there: bool):
                # As many tokens in a pass as there are chains, or more where that fits into registers.
                step_by = CHAINS if rows == 1 else CHAINS // vectors
                tokens = Loop(builder, [load(builder, slot) for slot in slots], step_by)
                totals = list(tokens.state)
                for step in range(step_by):
                    token = builder.add(tokens.index, word(step))
                    place = offset(builder, start, builder.mul(builder.mul(depth, token), size))
                    line = builder.mul(size, word(LANES))
                    places = [offset(builder, place, builder.mul(line, word(vector))) for vector in range(vectors)]
                    numbers = [load_vector(place) for place in places]
                    if rows == 1:
                        for place in places:
                            _prefetch(builder, offset(builder, place, ahead))
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

            def mix_all(kept):
                add_values(word(kept.size), lambda place: kept.load(builder, place), all_there=True)

            def load_any(place):
                return for_kind(builder, kind, lambda kept: kept.load(builder, place))

            is_full = builder.icmp_signed(">=", count, word(LANES))
            with builder.if_else(is_full) as (full, partial):
                with full:
                    for_kind(builder, kind, mix_all)
                with partial:  # a token at a time chooses by the kind: it is one block of many, and less to compile
                    add_values(number_bytes, load_any, all_there=False)
            return context.get_dummy_value()

        number = types.int64
        return types.void(scratch, shares, sums, number, cache, number, number, number), generate

    return intrinsic(mix)


mix_values_1 = _mix_values(1, 1)
mix_values_2 = _mix_values(2, 1)
mix_values_4 = _mix_values(4, 1)
mix_tile_1 = _mix_values(1, TILE)
mix_tile_2 = _mix_values(2, TILE)
mix_tile_4 = _mix_values(4, TILE)


@intrinsic
def write_numbers(typing_context, x, index, count, cache, place, stride):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        x, index, count, cache, place, stride = arguments
        memory, kind, _ = unpack_tuple(builder, cache)
        source = address(context, builder, signature.args[0], x, index, FLOAT)
        target = address(context, builder, signature.args[3].types[0], memory, place, BYTE)

        def write(kept):
            vectors = Loop(builder, [], LANES)
            rounded = kept.rounded(builder, load(builder, offset(builder, source, vectors.index)))
            left, step = builder.sub(count, vectors.index), builder.mul(stride, word(kept.size))
            first = offset(builder, target, builder.mul(vectors.index, step))
            is_whole = builder.icmp_signed(">=", left, word(LANES))
            is_row = builder.and_(is_whole, builder.icmp_signed("==", stride, word(1)))
            with builder.if_else(is_row) as (at_once, one_by_one):
                with at_once:
                    builder.store(rounded, builder.bitcast(first, rounded.type.as_pointer()), align=kept.size)
                with one_by_one:
                    buffer = cgutils.alloca_once(builder, rounded.type)
                    builder.store(rounded, buffer)
                    element = rounded.type.element.as_pointer()
                    lanes = Loop(builder, [])
                    one = builder.load(offset(builder, builder.bitcast(buffer, element), lanes.index))
                    there = offset(builder, first, builder.mul(lanes.index, step))
                    builder.store(one, builder.bitcast(there, element), align=kept.size)
                    lanes.close(builder.select(is_whole, word(LANES), left), [])
            vectors.close(count, [])

        for_kind(builder, kind, write)
        return context.get_dummy_value()

    return types.void(x, types.int64, types.int64, cache, types.int64, types.int64), generate
