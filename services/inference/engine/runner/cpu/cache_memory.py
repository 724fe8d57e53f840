"""The memory of the KV cache, taken from the system ahead of need and off the step."""

import _thread
import contextlib
import ctypes
import mmap
import os
import sys
import threading
import time

import structlog

from services.inference.engine.runner.cpu.weights import aligned_bytes
from shared.system.memory import free_memory, total_memory

_log = structlog.get_logger("ownlm.engine")

if sys.platform == "linux":
    _madvise = ctypes.CDLL(None).madvise
    _madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

_CHECKED_BYTES = 32 << 20  # as much is taken before free memory is looked at again
_AHEAD_BYTES = 32 << 20
_MOST_KEPT_FREE = 256 << 20
_RETRY_SECONDS = 1.0
_LOWEST_PRIORITY = 19


class CacheMemory:
    """Blocks of memory that belong to the process once they have been written to; a `BlockMemory`.

    The system hands memory over page by page when it is first written to, which takes a step 5 to 50 ms, and ends a
    process that is given none. So a thread of the lowest priority writes to the next blocks before sequences need
    them, a few dozen MiB at a time, and stops where little memory is left. Blocks for `num_first` are taken at once, so
    that one sequence of full length can always run; further ones can be given back on Linux.

    Args:
        num_blocks: The most blocks.
        block_bytes: Of each.
        num_first: Blocks that are taken at once.
        num_slots: Sequences that may run at the same time, and need a block each: as many are taken ahead at least.

    Attributes:
        array: The bytes of all blocks.
        num_ready: See `BlockMemory`.

    Raises:
        MemoryError: The system has too little memory for the first blocks, or too little address space for all.
    """

    def __init__(self, num_blocks: int, block_bytes: int, *, num_first: int, num_slots: int) -> None:
        first_bytes = num_first * block_bytes
        if first_bytes > (free := free_memory()):
            raise MemoryError(f"the KV cache begins with {first_bytes >> 20} MiB, and {free >> 20} MiB are free")
        self.array = aligned_bytes(num_blocks * block_bytes)
        self.num_ready = 0
        self._num_first = num_first
        self._blocks = self.array.reshape(num_blocks, block_bytes)
        self._checked = num_first  # blocks for which there was enough memory
        self._num_ahead = max(num_slots, _AHEAD_BYTES // block_bytes)
        self._kept_free = min(_MOST_KEPT_FREE, total_memory() // 10)
        self._wanted = 0
        self._retry_at = 0.0
        self._shortage = ""
        self._taking = threading.Lock()
        self._take(num_first)

    @property
    def is_growing(self) -> bool:
        """See `BlockMemory`."""
        return self.num_ready < self._wanted

    def reserve(self, count: int, *, wait: bool = False) -> None:
        """See `BlockMemory`."""
        if time.monotonic() >= self._retry_at:
            if not self.is_growing and self.num_ready < min(count + self._num_ahead // 2, len(self._blocks)):
                self._grow_to(min(count + self._num_ahead, len(self._blocks)))
            if wait:
                self._take(count)
        if self._shortage:  # written here: lines of several threads would mix
            _log.warning("KV cache growth paused: low memory", reason=self._shortage)
            self._shortage = ""

    def num_kept(self, count: int) -> int:
        """See `BlockMemory`."""
        return max(self._num_first, count + self._num_ahead)

    def give_back(self, count: int) -> None:
        """See `BlockMemory`."""
        if sys.platform != "linux":
            return
        with self._taking:
            if self.is_growing or count >= self.num_ready:
                return
            self.num_ready = self._checked = self._wanted = count
            begin = self._blocks[count].ctypes.data
            begin += -begin % mmap.PAGESIZE
            size = self.array.ctypes.data + self.array.nbytes - begin
            # A page is there again, all zeros, when it is next written to.
            _madvise(begin, size - size % mmap.PAGESIZE, mmap.MADV_DONTNEED)

    def _take(self, count: int) -> None:
        """Write to blocks until there are `count`, or memory runs short."""
        while self.num_ready < count:
            with self._taking:
                if self.num_ready >= self._checked and not self._may_take_more():
                    return
                if self.num_ready < count:
                    self._blocks[self.num_ready] = 0
                    self.num_ready += 1

    def _may_take_more(self) -> bool:
        block_bytes = self._blocks.shape[1]
        more = min(max(1, _CHECKED_BYTES // block_bytes), len(self._blocks) - self._checked)
        free = free_memory()
        if free - more * block_bytes >= self._kept_free:
            self._checked += more
            return True
        if self._retry_at == 0:
            self._shortage = (
                f"{self.num_ready * block_bytes >> 20} MiB are in use and {free >> 20} MiB free; sequences may wait "
                "for each other until there is more"
            )
        self._wanted, self._retry_at = self.num_ready, time.monotonic() + _RETRY_SECONDS
        return False

    def _grow_to(self, count: int) -> None:
        """Begin to take blocks in a thread; none starts where the limit on threads is reached."""
        self._wanted = count
        try:
            _thread.start_new_thread(self._take_in_background, ())
        except RuntimeError:
            self._wanted, self._retry_at = self.num_ready, time.monotonic() + _RETRY_SECONDS

    def _take_in_background(self) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        try:
            self._take(self._wanted)
        finally:
            self._wanted = min(self._wanted, self.num_ready)
