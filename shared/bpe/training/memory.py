"""How the memory limit of a training is divided."""

from shared.bpe import kernels
from shared.bpe.errors import TokenizerError
from shared.kernels import object_file
from shared.system.memory import resident_memory, total_memory

# What training needs besides pretokens and pairs, at least: buffers, and the result as Python objects.
_RESERVE_BYTES = 48 << 20
_SHARE_OF_TABLES, _SHARE_OF_CHUNKS = 0.6, 0.2

BYTES_PER_PRETOKEN_BYTE = 12
"""What a byte of a pretoken needs while merges are trained, at least."""


class MemoryBudget:
    """The parts of a memory limit, less what the process holds already.

    Args:
        limit: Bytes that the process may hold; half of the machine's memory if None.

    Attributes:
        limit: Likewise, never None.
        tables: Bytes for the pretoken counts of all threads, including while they grow.
        chunks: Bytes for the text that all threads are reading.
        pretoken: The longest pretoken, in bytes, that can still be merged.

    Raises:
        TokenizerError: The limit is too low to train at all.
    """

    def __init__(self, limit: int | None):
        object_file.of(kernels.__name__).load()  # so that the kernels' own memory is counted
        self.limit = limit or total_memory() // 2
        used = resident_memory()
        left = self.limit - used - _RESERVE_BYTES
        if left < _RESERVE_BYTES:
            raise TokenizerError(
                f"the memory limit of {self.limit:,} bytes is too low: the process itself uses {used:,}, and training "
                f"needs at least {2 * _RESERVE_BYTES:,} more"
            )
        self.tables = int(left * _SHARE_OF_TABLES)
        self.chunks = int(left * _SHARE_OF_CHUNKS)
        self.pretoken = left // BYTES_PER_PRETOKEN_BYTE

    def for_merging(self) -> int:
        """Bytes of the limit that are free now, less what the result needs as Python objects."""
        return max(0, self.limit - resident_memory() - _RESERVE_BYTES // 2)
