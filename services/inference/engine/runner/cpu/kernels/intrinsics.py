"""The machine operations of the step, as kernels call them; the modules `*_llvm` generate them.

A vector is `LANES` numbers of 32 bits; a block of the KV cache holds as many positions. Indices are not checked, and no
result depends on which vector instructions the processor has: lanes are never added to one another except where it is
said, and then in one fixed order.

    panel_product_R(panel, x, row, column, sums, begin)
        The product of R rows of activations, from x's row `row` on, with one panel of weights of FLOAT32 or FLOAT16
        (see `weights`): for each row and each of the PANEL outputs n, the sum over k = 0, 1, ... depth - 1, in that
        order, of number column + k of the row times the weight of (k, n), in float32 whatever the kind. Each continues
        the sum in `sums`, where from index `begin` on there are PANEL of each row of x.
    pair_product(panel, x, sums, begin)
        The product of x's first row with a panel of FLOAT32 and the one behind it: the same sums, from 0 on.
    sum_of_squares(x, index, count)
        Of `count` numbers, a multiple of LANES: each lane by itself, then the lanes in pairs of halves.
    write_numbers(x, index, count, cache, place, stride)
        Write the `count` numbers from x[index] on to the cache, `stride` numbers apart from byte `place` on, rounded to
        its kind: to the nearest, of two the even one. NaN stays NaN, and so becomes what float16 cannot hold. The
        numbers up to the next whole vector are read.
    dot_keys(q, queries, cache, blocks, ahead, depth, scores, targets)
        Scores of four queries, that begin at the four indices `queries` of q, each against a block of keys: from one of
        the bytes `blocks` on, the cache holds, for each of `depth` channels, the LANES positions side by side. Keys are
        float32 once they are loaded. Scores go to the indices `targets` of `scores`. What lies `ahead` bytes of the
        keys is prefetched meanwhile where that is faster.
    softmax(scores, index, count)
        Turn `count` scores into exp(score - largest), those up to the next whole vector into 0; returns their sum.
    dot_tile(q, index, cache, blocks, depth, scores, target)
        The same scores for TILE queries, from index `index` of the rows q on, each against four blocks of keys. Those
        of a query lie side by side, from index `target` of the rows `scores` on.
    mix_values_V(scratch, shares, sums, count, cache, value, ahead, depth)
        Add `count` rows of values (at most LANES are used), each times its share, for V vectors of channels from byte
        `value` of the cache on. Rows lie `depth` numbers apart; what lies `ahead` bytes of them is prefetched as above.
        `shares` and `sums` are places in `scratch` and their distance from one query to the next; a query has
        CHAINS // V sums, V vectors each, which the rows are added to in turn.
    mix_tile_V(scratch, shares, sums, count, cache, value, ahead, depth)
        The same sums for TILE queries. Each sees one row more than the one before. Nothing is prefetched.
    swiglu(x, index, out, out_index)
        silu of LANES gates, times the LANES numbers behind them.
    has_many_registers()
        Whether there are 32 vector registers of LANES numbers, rather than the equivalent of 8 (AVX2) or fewer.
    finish(phases, index, done, items)
        Add `done` to the word at `index`, and wait until all threads together have added `items`.
"""

from shared.kernels.intrinsics import Intrinsic

LANES = 16
PANEL = 2 * LANES  # outputs of a panel of weights
TILE = 4  # queries at consecutive positions that are computed at once
CHAINS = 4  # vectors of sums of values, since each addition waits for the one before
CACHE_LINE = 8  # words of 64 bits

FLOAT32, BFLOAT16, FLOAT16, INT8, BFLOAT16_TILES = range(5)
"""The kinds of weights. BFLOAT16_TILES are BFLOAT16, to be multiplied by `tiles`; those of keys
and values are the first three."""

_LINEAR = "services.inference.engine.runner.cpu.kernels.linear_llvm"
_ATTENTION = "services.inference.engine.runner.cpu.kernels.attention_llvm"
_THREADS = "services.inference.engine.runner.cpu.kernels.threads_llvm"

panel_product_1 = Intrinsic("panel_product_1", _LINEAR)
panel_product_2 = Intrinsic("panel_product_2", _LINEAR)
panel_product_3 = Intrinsic("panel_product_3", _LINEAR)
panel_product_4 = Intrinsic("panel_product_4", _LINEAR)
panel_product_5 = Intrinsic("panel_product_5", _LINEAR)
panel_product_6 = Intrinsic("panel_product_6", _LINEAR)
panel_product_8 = Intrinsic("panel_product_8", _LINEAR)
panel_product_12 = Intrinsic("panel_product_12", _LINEAR)
pair_product = Intrinsic("pair_product", _LINEAR)
sum_of_squares = Intrinsic("sum_of_squares", _LINEAR)
write_numbers = Intrinsic("write_numbers", _ATTENTION)
dot_keys = Intrinsic("dot_keys", _ATTENTION)
softmax = Intrinsic("softmax", _ATTENTION)
dot_tile = Intrinsic("dot_tile", _ATTENTION)
mix_tile_1 = Intrinsic("mix_tile_1", _ATTENTION)
mix_tile_2 = Intrinsic("mix_tile_2", _ATTENTION)
mix_tile_4 = Intrinsic("mix_tile_4", _ATTENTION)
mix_values_1 = Intrinsic("mix_values_1", _ATTENTION)
mix_values_2 = Intrinsic("mix_values_2", _ATTENTION)
mix_values_4 = Intrinsic("mix_values_4", _ATTENTION)
swiglu = Intrinsic("swiglu", _LINEAR)
has_many_registers = Intrinsic("has_many_registers", _LINEAR)
finish = Intrinsic("finish", _THREADS)
