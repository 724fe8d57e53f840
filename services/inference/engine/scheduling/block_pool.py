"""Blocks of the KV cache: who holds them, and which tokens' keys and values they keep."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

ROOT = bytes(hashlib.sha256().digest_size)
"""Stands for the block before the first one."""


def chain_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Name a block's content: SHA-256 of its tokens and of the name of the block before it (`ROOT` for none).

    Two prompts share a name only if they are equal up to the block's end: keys and values depend on nothing else.
    """
    return hashlib.sha256(parent + array("q", tokens).tobytes()).digest()


class BlockPool:
    """Counts references to blocks, and remembers what is in those that are full.

    A block is free, or held by rows, or idle: nobody holds it, and it stays as it is until its room is needed, in case
    a prompt begins with the same tokens. Idle blocks go in the order of their last use, of one sequence the last first:
    the beginnings of prompts are what others share.

    Args:
        num_blocks: Blocks of the KV cache, numbered from 0.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._digests: dict[int, bytes] = {}
        self._blocks: dict[bytes, int] = {}

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        """Blocks that nobody holds and that may be found again."""
        return len(self._idle)

    @property
    def num_held(self) -> int:
        """Blocks that rows hold."""
        return self.num_blocks - self.num_available

    def allocate(self) -> int:
        """Give a block with one reference; an idle one loses its content.

        Raises:
            IndexError: All are held.
        """
        if self._free:
            block = self._free.pop()
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            del self._blocks[self._digests.pop(block)]
        else:
            raise IndexError(f"all {self.num_blocks} blocks of the KV cache are held")
        self._references[block] = 1
        return block

    def find(self, digest: bytes) -> int | None:
        """The block with this content."""
        return self._blocks.get(digest)

    def is_idle(self, block: int) -> bool:
        """Whether nobody holds a block that was found."""
        return self._references[block] == 0

    def share(self, block: int) -> None:
        """Add a reference to a block that is held or idle."""
        if self._references[block] == 0:
            del self._idle[block]
        self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each of a sequence's blocks."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._digests:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def store(self, block: int, digest: bytes) -> None:
        """Say that a held block is full and what is in it; the first block with a content is the one to be found."""
        if digest not in self._blocks:
            self._blocks[digest] = block
            self._digests[block] = digest

    def forget(self, blocks: Iterable[int]) -> None:
        """Let held blocks not be found any more: what is in them may be wrong."""
        for block in blocks:
            digest = self._digests.pop(block, None)
            if digest is not None:
                del self._blocks[digest]
