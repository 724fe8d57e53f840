"""Packing documents into windows: which documents share one, so that none is cut and little is left empty."""

import bisect

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


def pack(lengths: Integers, capacity: int, seed: int) -> list[list[int]]:
    """Documents that go into a window together: best fit, longest first.

    The longest document that is left goes where it leaves least room. It takes at most 11/9 of the fewest windows
    possible, and one more (Johnson et al. 1974, "Worst-case performance bounds for simple one-dimensional packing
    algorithms"); the documents of conversations fill 95 to 99 % of them. TRL packs so too (`packing_strategy="bfd"`).

    Args:
        lengths: Of the documents, each at most the capacity.
        capacity: Of a window.
        seed: Decides the order of documents of equal length.

    Returns:
        Windows, each the numbers of its documents.
    """
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(lengths))
    order = order[np.argsort(-lengths[order], kind="stable")]
    windows: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # windows by the room that is left in them
    rooms: list[int] = []  # its keys, in order
    for document, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        place = bisect.bisect_left(rooms, length)
        if place == len(rooms):
            number, room = len(windows), capacity
            windows.append([])
        else:
            room = rooms[place]
            number = with_room[room].pop()
            if not with_room[room]:
                del with_room[room], rooms[place]
        windows[number].append(document)
        left = room - length
        if left not in with_room:
            with_room[left] = []
            bisect.insort(rooms, left)
        with_room[left].append(number)
    return windows
