"""Machine operations that Numba does not offer by itself, as kernels call them; `intrinsics_llvm` generates them.

A set of kernels may have more of its own, which a module of its package generates.

Indices are not checked; every caller stays inside its arrays.

    byte_range_mask(data, index, fold, low, width)   bit k is set where ((data[index + k] | fold) - low) % 256 < width,
                                                     for the BLOCK bytes from index on
    load_word(data, index)                           the eight bytes from data[index] on as a little-endian number
    store_word(data, index, word)                    writes them
    prefetch(data, index)                            requests the cache line of data[index], to be read soon
    trailing_zeros(word), leading_zeros(word)        how many low or high bits of a number other than zero are clear
    store_set_bits(data, index, mask, base)          writes the place of each set bit of a mask plus a base, 64 bits
                                                     each, to data[index] and after it, where BLOCK must have room;
                                                     returns their number
    find_utf8(object, data, index)                   the address of a Python string's UTF-8, whose size is written to
                                                     data[index]; 0 and an exception if it has none
    new_array(numpy_api, data, count)                the address of a new NumPy array of data's first numbers; 0 and an
                                                     exception if there is no memory for it
    new_list(count)                                  the address of a new list, to be filled; 0 and an exception if
                                                     there is no memory for it
    put_view(numpy_api, list, place, owner, data, index, count)
                                                     put a NumPy array into a new list that shows `count` numbers from
                                                     data[index] on, which belong to the array `owner`; 0 and an
                                                     exception if there is no memory for it, else 1
    drop(object)                                     give a reference back
    none()                                           the address of None, with a new reference
    copy_bytes(address, data, index, count)          copies so many bytes from an address to data[index] and after it
    take_ticket(tickets, index)                      add 1 to a counter that threads share, and return what it was
    allocate_like(data, count), release(data)        memory of the C library as an array of the type of another, not
                                                     cleared; of size 0 if there is none
"""

from dataclasses import dataclass
from typing import Any

BLOCK = 64  # bytes that one mask describes
LANES = 16  # numbers of 32 bits that are computed with at once


@dataclass(frozen=True)
class Intrinsic:
    """A name that stands for an operation until kernels are compiled.

    Attributes:
        name: What it is called.
        module: Where the function of this name is that generates it; imported only to compile.
    """

    name: str
    module: str = "shared.kernels.intrinsics_llvm"

    def __call__(self, *_arguments: Any) -> Any:
        """Never called: only compiled code reaches the operation."""
        raise TypeError(f"{self.name} can be called in compiled code only")


byte_range_mask = Intrinsic("byte_range_mask")
load_word = Intrinsic("load_word")
store_word = Intrinsic("store_word")
prefetch = Intrinsic("prefetch")
store_set_bits = Intrinsic("store_set_bits")
find_utf8 = Intrinsic("find_utf8")
new_array = Intrinsic("new_array")
new_list = Intrinsic("new_list")
put_view = Intrinsic("put_view")
drop = Intrinsic("drop")
none = Intrinsic("none")
copy_bytes = Intrinsic("copy_bytes")
trailing_zeros = Intrinsic("trailing_zeros")
leading_zeros = Intrinsic("leading_zeros")
take_ticket = Intrinsic("take_ticket")
allocate_like = Intrinsic("allocate_like")
release = Intrinsic("release")
