"""The pretokens that an encoder has seen: a table that its threads share, and its successors."""

from shared.bpe.kernels.pretoken_cache import ENTRY, GROUP, Table, move_pretokens, new_table
from shared.system.thread_pool import new_lock

# Entries of each table, and 64-bit words of its store: 0.2, 1.3, 10 and 48 MB. All that follow are as the last.
_SIZES = ((1 << 12, 1 << 12), (1 << 15, 1 << 15), (1 << 18, 1 << 18), (1 << 20, 1 << 21))


class PretokenMemory:
    """The current table, and the one before, from which it takes over what is used again.

    Attributes:
        tables: Both, replaced together.
    """

    def __init__(self) -> None:
        self._growing = new_lock()
        self._sizes = iter(_SIZES)
        self.tables = new_table(*next(self._sizes)), new_table(GROUP // ENTRY, 0)

    def grow(self, full: Table) -> None:
        """Begin the next table, unless another thread has done so since this one was full."""
        with self._growing:
            current, older = self.tables
            if current is not full:
                return
            size = next(self._sizes, None)
            if size is None:
                self.tables = new_table(*_SIZES[-1]), current
            else:
                larger = new_table(*size)
                move_pretokens(current, larger)
                self.tables = larger, older
