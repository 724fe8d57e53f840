"""Whether this process may use AMX tiles: Linux grants their registers to processes that ask."""

import ctypes
import sys
from functools import cache

from services.inference.engine.runner.cpu.kernels.tiles import compiled_for_tiles

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)


@cache
def permitted() -> bool:
    """Ask once for all threads of the process, and say what the answer was.

    Without permission the first tile instruction ends the process. Linux refuses before version 5.16, where the
    processor has no tiles, and to a process with an alternative signal stack that is too small for them.
    """
    if not (sys.platform == "linux" and compiled_for_tiles()):
        return False
    answer: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
    return answer == 0
