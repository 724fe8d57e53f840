"""Blocks of the KV cache: their reference counts, and which tokens' keys and values they hold."""

import hashlib
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from services.inference.engine.runner.protocol import BlockMemory

_WINDOW_SECONDS = 300.0  # of use, by which memory is given back

NO_PARENT = bytes(hashlib.sha256().digest_size)
"""The parent digest of a sequence's first block."""


def chain_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Digest of a block's content: SHA-256 of the previous block's digest (or `NO_PARENT`) and of its tokens.

    Two prompts share a digest only if they are equal up to the block's end: keys and values depend on nothing else.
    """
    return hashlib.sha256(parent + array("q", tokens).tobytes()).digest()


class BlockPool:
    """Counts references to blocks, and finds full blocks by their content: the prefix cache.

    A block is free, held by sequences, or cached: unused, but its content stays until the block is needed, in case a
    prompt begins with the same tokens. Cached blocks are evicted least recently used first, and the last blocks of a
    sequence before its first: prompts share their beginnings.

    Args:
        num_blocks: The most blocks of the KV cache, numbered from 0.
        memory: Where it comes from; None if all of it is there.

    Attributes:
        num_ready: Blocks that have memory; `has_room` and `grow_ahead` update it.
    """

    def __init__(self, num_blocks: int, memory: BlockMemory | None = None) -> None:
        self.num_blocks = num_blocks
        self.num_ready = num_blocks if memory is None else memory.num_ready
        self._memory = memory
        self._references = [0] * num_blocks
        self._free = list(range(self.num_ready - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # the next to be evicted first
        self._digests: dict[int, bytes] = {}
        self._blocks: dict[bytes, int] = {}
        self._most_held = self._most_held_before = 0  # in this window and the one before
        self._last_hit = self._last_hit_before = -1  # the highest number of a cached block that was a hit
        self._window_ends = time.monotonic() + _WINDOW_SECONDS

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give without further memory."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Unused blocks that can be cache hits."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks that sequences hold."""
        return self.num_ready - self.num_available

    def has_room(self, count: int, *, wait: bool = False) -> bool:
        """Whether so many blocks can be allocated. While there may be more memory for them, none is evicted.

        Args:
            count: Blocks.
            wait: For memory, instead of returning False until there is some.
        """
        missing = count - len(self._free)
        if missing > 0 and self.num_ready < self.num_blocks:
            needed = min(self.num_ready + missing, self.num_blocks)
            is_growing = self._reserve(needed, wait=wait)
            if self.num_ready < needed and is_growing:
                return False
        return count <= self.num_available

    def grow_ahead(self) -> None:
        """Let memory be taken for blocks that will be needed next."""
        if self.num_ready < self.num_blocks:
            self._reserve(self.num_ready - len(self._free))

    def give_back(self) -> None:
        """Now and then, give back the memory of unused blocks that sequences have not needed for a while.

        Blocks are given back from the last one on, to one that is held or was a prefix cache hit. Other cached blocks
        are among them.
        """
        if self._memory is None or time.monotonic() < self._window_ends or self._memory.is_growing:
            return
        needed, last_hit = max(self._most_held, self._most_held_before), max(self._last_hit, self._last_hit_before)
        self._most_held, self._most_held_before = self.num_held, self._most_held
        self._last_hit, self._last_hit_before = -1, self._last_hit
        self._window_ends = time.monotonic() + _WINDOW_SECONDS
        kept = max(self._memory.num_kept(needed), last_hit + 1)
        if kept >= self.num_ready:
            return
        for block in [block for block in self._cached if block >= kept]:
            del self._cached[block], self._blocks[self._digests.pop(block)]
            self._free.append(block)
        end = max((block + 1 for block in range(kept, self.num_ready) if not self.is_unused(block)), default=kept)
        self._memory.give_back(end)
        # Not more than before: blocks that have been taken meanwhile are not among the free ones yet.
        self.num_ready = min(self.num_ready, self._memory.num_ready)
        # The first ones are used next: where the last one is held now, more can be given back another time.
        self._free = sorted((block for block in self._free if block < self.num_ready), reverse=True)

    def _reserve(self, count: int, *, wait: bool = False) -> bool:
        """Have memory for blocks and add what there is; returns whether more is being taken."""
        if self._memory is None:
            return False
        self._memory.reserve(count, wait=wait)
        is_growing, ready = self._memory.is_growing, self._memory.num_ready
        # New blocks come after those that have been used before.
        self._free[:0] = range(ready - 1, self.num_ready - 1, -1)
        self.num_ready = ready
        return is_growing

    def allocate(self) -> int:
        """Return a block with one reference; evicts a cached one if none is free.

        Raises:
            IndexError: All are held.
        """
        if self._free:
            block = self._free.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            del self._blocks[self._digests.pop(block)]
        else:
            raise IndexError(f"all {self.num_ready} blocks of the KV cache are held")
        self._references[block] = 1
        self._most_held = max(self._most_held, self.num_held)
        return block

    def lookup(self, digest: bytes) -> int | None:
        """The block with this content, or None."""
        return self._blocks.get(digest)

    def is_unused(self, block: int) -> bool:
        """Whether no sequence holds the block."""
        return self._references[block] == 0

    def add_reference(self, block: int) -> None:
        """Hold a block that is held or cached."""
        if self._references[block] == 0:
            del self._cached[block]
            self._last_hit = max(self._last_hit, block)
        self._references[block] += 1
        self._most_held = max(self._most_held, self.num_held)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each of a sequence's blocks."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._digests:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def register(self, block: int, digest: bytes) -> None:
        """Make a held block that is full a cache hit for its content; the first block with a content stays the hit."""
        if digest not in self._blocks:
            self._blocks[digest] = block
            self._digests[block] = digest

    def invalidate(self, blocks: Iterable[int]) -> None:
        """Let held blocks be no cache hits any more: their content may be wrong."""
        for block in blocks:
            digest = self._digests.pop(block, None)
            if digest is not None:
                del self._blocks[digest]
