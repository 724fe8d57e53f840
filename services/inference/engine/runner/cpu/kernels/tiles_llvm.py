"""What `tiles` declares, for Numba: imported only to compile. Without tiles, the products compile to nothing."""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from services.inference.engine.runner.cpu.kernels.bfloat16 import DEPTH, GROUP
from services.inference.engine.runner.cpu.kernels.intrinsics import LANES, PANEL
from services.inference.engine.runner.cpu.kernels.vectors_llvm import (
    BIT,
    BYTE,
    Loop,
    offset,
    word,
)
from shared.kernels.llvm import address, call, has_feature

_ROW_BYTES = 64
_TILE_BYTES = GROUP * _ROW_BYTES
_HALVES = PANEL // LANES
_SUMS, _ROWS, _WEIGHTS = 0, 4, 6  # the first tile of each kind
_CONFIGURATION = bytes([1, *[0] * 15, *[_ROW_BYTES, 0] * 8, *[0] * 16, *[GROUP] * 8, *[0] * 8])  # eight whole tiles


def _tile_product(groups: int):
    def product(typing_context, panel, rounded, row, sums, begin):
        def generate(context, builder, signature, arguments):
            if not _has_tiles():
                return context.get_dummy_value()
            panel, rounded, row, sums, begin = arguments
            kinds = signature.args
            packed, start, depth, *_ = cgutils.unpack_tuple(builder, panel)
            weights = address(context, builder, kinds[0].types[0], packed, start, BYTE)
            blocks = builder.udiv(depth, word(DEPTH))
            of_group = builder.mul(blocks, word(_TILE_BYTES))
            first = builder.mul(builder.udiv(row, word(GROUP)), of_group)
            rows = offset(builder, address(context, builder, kinds[1], rounded, word(0), BYTE), first)
            place = builder.add(begin, builder.mul(row, word(PANEL)))
            target = address(context, builder, kinds[3], sums, place, BYTE)
            _multiply(builder, weights, [rows, offset(builder, rows, of_group)][:groups], blocks, target)
            return context.get_dummy_value()

        return types.void(panel, rounded, types.int64, sums, types.int64), generate

    return intrinsic(product)


tile_product_1 = _tile_product(1)
tile_product_2 = _tile_product(2)


def _multiply(builder, weights, groups, blocks, sums):
    """Write the sums from an address on, [16 rows of each group][PANEL]."""
    configuration = cgutils.global_constant(builder, "tiles", cgutils.make_bytearray(_CONFIGURATION))
    _tile(builder, "ldtilecfg", builder.bitcast(configuration, BYTE.as_pointer()))
    pairs = [(group, half) for group in range(len(groups)) for half in range(_HALVES)]
    for group, half in pairs:
        _tile(builder, "tilezero", _SUMS + group * _HALVES + half)
    loop = Loop(builder, [])
    for group, rows in enumerate(groups):
        block = offset(builder, rows, builder.mul(loop.index, word(_TILE_BYTES)))
        _tile(builder, "tileloadd64", _ROWS + group, block, word(_ROW_BYTES))
    for half in range(_HALVES):
        place = builder.add(loop.index, builder.mul(blocks, word(half)))
        block = offset(builder, weights, builder.mul(place, word(_TILE_BYTES)))
        _tile(builder, "tileloadd64", _WEIGHTS + half, block, word(_ROW_BYTES))
    for group, half in pairs:
        _tile(builder, "tdpbf16ps", _SUMS + group * _HALVES + half, _ROWS + group, _WEIGHTS + half)
    loop.close(blocks, [])
    for group, half in pairs:
        place = (group * GROUP * PANEL + half * LANES) * 4
        _tile(builder, "tilestored64", _SUMS + group * _HALVES + half, offset(builder, sums, place), word(PANEL * 4))
    _tile(builder, "tilerelease")


def _tile(builder, name, *arguments) -> None:
    """An instruction; whole numbers are the numbers of tiles."""
    operands = [ir.Constant(BYTE, value) if isinstance(value, int) else value for value in arguments]
    call(builder, f"llvm.x86.{name}", ir.VoidType(), *operands)


@intrinsic
def has_tiles(typing_context):
    """See `tiles`."""

    def generate(context, builder, signature, arguments):
        return ir.Constant(BIT, int(_has_tiles()))

    return types.boolean(), generate


def _has_tiles() -> bool:
    return has_feature("amx-tile") and has_feature("amx-bf16")
