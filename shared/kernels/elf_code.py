"""Object files in memory, ready to run: sections are placed, addresses filled in, pages made executable.

A loader for what `building` emits on x86-64 Linux: LLVM, which could do it, is a library of 170 MB. In its code model
for code in memory, calls and addresses have all 64 bits, which leaves little to do.

The format: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html, and for relocations
https://gitlab.com/x86-psABIs/x86-64-ABI, section 4.4.
"""

import ctypes
import mmap
import os
import platform
import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian
_MACHINE = 62  # EM_X86_64
_SECTION = np.dtype(
    [
        *[(name, "<u4") for name in ("name", "type")],
        *[(name, "<u8") for name in ("flags", "address", "offset", "size")],
        *[(name, "<u4") for name in ("link", "info")],
        *[(name, "<u8") for name in ("alignment", "entry_size")],
    ]
)
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_RELOCATION = np.dtype([("place", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])

_SYMBOLS, _RELOCATIONS, _NO_BITS, _UNWIND = 2, 4, 8, 0x7000_0001  # types of sections; no kernel throws
_WRITABLE, _IN_MEMORY = 1, 2  # flags of sections
_UNDEFINED, _LAST_SECTION = 0, 0xFF00
_ABSOLUTE_64, _RELATIVE_32, _CALL_32, _RELATIVE_64 = 1, 2, 4, 24


def is_supported() -> bool:
    """Whether this is a machine for whose object files this is."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def load(code: bytes) -> dict[str, int]:
    """Put an object file into memory, where it stays: threads may run it until the process ends.

    Returns:
        The addresses of what it defines, by name.

    Raises:
        ValueError: It is no object file for x86-64, or has what kernels do not need: data that can be written, an
            unknown relocation, a symbol that this process lacks.
        OSError: There is no memory, or the system forbids code that is not from a file.
    """
    if code[: len(_MAGIC)] != _MAGIC or int.from_bytes(code[18:20], "little") != _MACHINE:
        raise ValueError("not an object file for x86-64")
    sections = _sections(code)
    places, size = _arranged(sections)
    base = _allocated(size)
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(base))
    for number, place in places.items():
        if sections[number]["type"] != _NO_BITS:
            memory[place:][: sections[number]["size"]] = _content(code, sections[number], np.dtype(np.uint8))
    symbols = _symbols(code, sections, {number: base + place for number, place in places.items()})
    for section in sections[sections["type"] == _RELOCATIONS]:
        if (target := int(section["info"])) in places:
            for relocation in _content(code, section, _RELOCATION):
                _relocate(memory, base, places[target], relocation, symbols)
    _make_executable(base, size)
    return {symbol.name: symbol.address for symbol in symbols if symbol.name and symbol.is_defined}


class _Symbol(NamedTuple):
    name: str
    address: int
    is_defined: bool


def _sections(code: bytes) -> NDArray[Any]:
    start, count = int.from_bytes(code[40:48], "little"), int.from_bytes(code[60:62], "little")
    return np.frombuffer(code, _SECTION, count, start)


def _content(code: bytes, section: Any, entry: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(code, entry, int(section["size"]) // entry.itemsize, int(section["offset"]))


def _arranged(sections: NDArray[Any]) -> tuple[dict[int, int], int]:
    """Where each section that belongs into memory begins, by its number; and how much they take together."""
    places, end = {}, 0
    for number, section in enumerate(sections):
        if section["flags"] & _IN_MEMORY and section["type"] != _UNWIND:
            if section["flags"] & _WRITABLE:
                raise ValueError("the object file has data that can be written")
            alignment = max(int(section["alignment"]), 1)
            places[number] = -(-end // alignment) * alignment
            end = places[number] + int(section["size"])
    return places, max(end, 1)


def _symbols(code: bytes, sections: NDArray[Any], addresses: dict[int, int]) -> list[_Symbol]:
    """The symbols in the file's order; those that it lacks are looked up in this process."""
    (table,) = sections[sections["type"] == _SYMBOLS]
    names = _content(code, sections[table["link"]], np.dtype(np.uint8)).tobytes()
    symbols = []
    for entry in _content(code, table, _SYMBOL):
        name = names[entry["name"] : names.index(b"\0", entry["name"])].decode()
        section = int(entry["section"])
        if section == _UNDEFINED:
            symbols.append(_Symbol(name, _of_this_process(name) if name else 0, is_defined=False))
        elif section < _LAST_SECTION:
            symbols.append(_Symbol(name, addresses.get(section, 0) + int(entry["value"]), is_defined=True))
        else:  # the name of the source file
            symbols.append(_Symbol("", int(entry["value"]), is_defined=False))
    return symbols


def _of_this_process(name: str) -> int:
    """The address of a function of the C libraries or of Python."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0
    except AttributeError:
        raise ValueError(f"the object file calls {name}, which no library of this process has") from None


def _relocate(memory: NDArray[np.uint8], base: int, section: int, relocation: Any, symbols: list[_Symbol]) -> None:
    """Fill in one address."""
    place, kind = section + int(relocation["place"]), int(relocation["type"])
    value = symbols[relocation["symbol"]].address + int(relocation["addend"])
    if kind != _ABSOLUTE_64:
        value -= base + place
    if kind in {_ABSOLUTE_64, _RELATIVE_64}:
        filled = (value & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")
    elif kind in {_RELATIVE_32, _CALL_32} and -(1 << 31) <= value < 1 << 31:
        filled = value.to_bytes(4, "little", signed=True)
    else:
        raise ValueError(f"the object file has a relocation of type {kind} to {value:#x}, which is not supported")
    memory[place : place + len(filled)] = np.frombuffer(filled, np.uint8)


# Not Python's mmap, which unmaps the memory when its object is freed: threads may still run in it then.
def _allocated(size: int) -> int:
    """Memory that is zero, can be written, and begins with a page."""
    allocate = ctypes.CDLL(None, use_errno=True).mmap
    allocate.restype = ctypes.c_void_p
    allocate.argtypes = ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address: int = allocate(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        raise MemoryError(f"not enough memory to load compiled code ({os.strerror(ctypes.get_errno())})")
    return address


def _make_executable(address: int, size: int) -> None:
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if protect(address, size, mmap.PROT_READ | mmap.PROT_EXEC):
        error = ctypes.get_errno()
        raise OSError(error, f"the system does not let compiled code run ({os.strerror(error)})")
