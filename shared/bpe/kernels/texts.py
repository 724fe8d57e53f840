"""The UTF-8 of Python's strings, many short texts as one, and the ids of each apart."""

from shared.kernels.compiling import calling_python, compiled
from shared.kernels.intrinsics import copy_bytes, drop, find_utf8, new_list, put_view
from shared.kernels.numpy_api import NumPyApi
from shared.kernels.types import Int64Array, Uint8Array, Uint32Array, int64, python_object


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


@calling_python
def split_ids(owner: int64, numpy_api: NumPyApi, ids: Uint32Array, ends: Int64Array) -> python_object:
    """A list of NumPy arrays that show the ids of each text.

    Args:
        owner: The address of the array with the ids of all, whose memory stays as long as one of the others.
        numpy_api: `numpy_api()`.
        ids: The same array.
        ends: Where the ids of each text end.

    Returns:
        0 and an exception if there is no memory for it.
    """
    views = new_list(ends.size)
    if views == 0:
        return 0
    start = 0
    for index in range(ends.size):
        if put_view(numpy_api, views, index, owner, ids, start, ends[index] - start) == 0:
            drop(views)
            return 0
        start = ends[index]
    return views
