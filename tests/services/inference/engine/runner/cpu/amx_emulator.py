"""AMX tiles in NumPy, after the operations of Intel's manual: code for tiles runs on any processor, if slowly."""

import ctypes

import numpy as np
from numpy.typing import NDArray

_KINDS = {
    "ldtilecfg": (ctypes.c_void_p,),
    "tilezero": (ctypes.c_int8,),
    "tileloadd64": (ctypes.c_int8, ctypes.c_void_p, ctypes.c_int64),
    "tilestored64": (ctypes.c_int8, ctypes.c_void_p, ctypes.c_int64),
    "tdpbf16ps": (ctypes.c_int8, ctypes.c_int8, ctypes.c_int8),
    "tilerelease": (),
}


class Emulator:
    """The tiles of a processor; what the manual forbids is in `faults`, as an exception would not leave the callback.

    Attributes:
        counts: How often each instruction ran.
        faults: What would have raised an exception.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(_KINDS, 0)
        self.faults: list[str] = []
        self._rows: list[int] = []
        self._bytes: list[int] = []
        self._tiles: dict[int, NDArray[np.uint8]] = {}
        self._callbacks = {name: ctypes.CFUNCTYPE(None, *kinds)(self._counted(name)) for name, kinds in _KINDS.items()}

    def addresses(self) -> dict[str, int]:
        """Of the functions that take the place of the instructions."""
        found = {}
        for name, callback in self._callbacks.items():
            found[name] = ctypes.cast(callback, ctypes.c_void_p).value or 0
        return found

    def _counted(self, name: str):  # type: ignore[no-untyped-def]
        def run(*operands: int) -> None:
            self.counts[name] += 1
            try:
                getattr(self, f"_{name}")(*operands)
            except (AssertionError, IndexError, KeyError) as error:
                self.faults.append(f"{name}{operands}: {error!r}")

        return run

    def _ldtilecfg(self, address: int) -> None:
        memory = _memory(address, 64)
        assert memory[0] == 1, "palette"
        assert not memory[1:16].any()
        assert not memory[32:48].any()
        assert not memory[56:].any()
        self._bytes = memory[16:32].copy().view(np.uint16).tolist()
        self._rows = memory[48:56].tolist()
        assert max(self._bytes) <= 64
        assert max(self._rows) <= 16
        self._tiles = {tile: np.zeros((self._rows[tile], self._bytes[tile]), np.uint8) for tile in range(8)}

    def _tilezero(self, tile: int) -> None:
        self._tiles[tile][:] = 0

    def _tileloadd64(self, tile: int, address: int, stride: int) -> None:
        for row in range(self._rows[tile]):
            self._tiles[tile][row] = _memory(address + row * stride, self._bytes[tile])

    def _tilestored64(self, tile: int, address: int, stride: int) -> None:
        for row in range(self._rows[tile]):
            _memory(address + row * stride, self._bytes[tile])[:] = self._tiles[tile][row]

    def _tdpbf16ps(self, target: int, left: int, right: int) -> None:
        assert len({target, left, right}) == 3
        assert self._bytes[left] // 4 == self._rows[right]
        assert self._rows[left] == self._rows[target]
        assert self._bytes[right] == self._bytes[target]
        sums = self._tiles[target].view(np.float32)
        a, b = (_floats(self._tiles[tile]) for tile in (left, right))  # [rows, pairs, 2], [pairs, outputs, 2]
        parts = np.zeros((*sums.shape, 2), np.float32)
        for pair in range(b.shape[0]):
            parts += a[:, pair, None, :] * b[None, pair, :, :]
        sums += parts[..., 0] + parts[..., 1]

    def _tilerelease(self) -> None:
        self._tiles = {}


def _memory(address: int, size: int) -> NDArray[np.uint8]:
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def _floats(tile: NDArray[np.uint8]) -> NDArray[np.float32]:
    bits = tile.view(np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).reshape(len(tile), -1, 2)
