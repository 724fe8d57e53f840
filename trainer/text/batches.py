"""Many short texts in one call."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

TEXT_BYTES = 64
"""What a short text takes in memory besides its characters, so that many of them count too."""


def batches(items: Iterable[Item], characters: int, text_of: Callable[[Item], str]) -> Iterator[list[Item]]:
    """Items in order, in lists that end when their texts have so many characters. A list has at least one item.

    Args:
        items: The items.
        characters: Characters of a list; each text counts `TEXT_BYTES` more.
        text_of: The text of an item.
    """
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += len(text_of(item)) + TEXT_BYTES
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
