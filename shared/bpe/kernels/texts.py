"""The UTF-8 of Python's strings, and many short texts as one."""

from shared.kernels.compiling import calling_python, compiled
from shared.kernels.intrinsics import copy_bytes, find_utf8
from shared.kernels.types import Int64Array, Uint8Array, int64


@calling_python
def locate_texts(strings: Int64Array, addresses: Int64Array, ends: Int64Array) -> int64:
    """Where the UTF-8 of strings lies, and where it ends if it is put end to end.

    It is made only for strings that are not ASCII, and then kept by Python as long as they are.

    Args:
        strings: The addresses of the objects.
        addresses: Receives those of their first bytes.
        ends: Receives the ends.

    Returns:
        How many strings have UTF-8 before the first that has none, for which an exception is raised.
    """
    end = 0
    for index in range(strings.size):
        addresses[index] = find_utf8(strings[index], ends, index)
        if addresses[index] == 0:
            return index
        end += ends[index]
        ends[index] = end
    return strings.size


@compiled
def join_texts(addresses: Int64Array, ends: Int64Array, out: Uint8Array) -> None:
    """Copy texts to `out`, end to end."""
    start = 0
    for index in range(ends.size):
        copy_bytes(addresses[index], out, start, ends[index] - start)
        start = ends[index]
