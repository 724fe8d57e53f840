"""How much of the memory limit encoding may use."""

from shared.bpe import TooLongError
from shared.system.memory import resident_memory, total_memory
from trainer.errors import TrainerError
from trainer.text.utf8 import CorpusError

# Needed for any text: two tables of pretokens, and libraries that are loaded later; and the buffers of each thread.
_RESERVE_BYTES = 160 << 20
_THREAD_BYTES = 16 << 20
# The most that each byte of text without a place to cut takes: up to 32 bytes to encode it (one pretoken, or pretokens
# as Python strings), and up to 28 to read the next one meanwhile (a JSON line that is an array of empty arrays).
_BYTES_PER_BYTE = 64
_LEAST_PART = 1 << 20


class EncodingMemory:
    """The memory that is left for text that must be read or encoded as a whole.

    Args:
        limit: Bytes that the process may hold; half of the machine's memory if None.
        threads: How many threads encode, each with its own buffers.

    Attributes:
        part: Bytes of text that may be encoded at once.
        record: Bytes of memory that reading a record may take.

    Raises:
        TrainerError: If the limit is too low for any text.
    """

    def __init__(self, limit: int | None, threads: int):
        taken = resident_memory() + _RESERVE_BYTES + threads * _THREAD_BYTES
        left = (limit or total_memory() // 2) - taken
        if limit is not None and left < _LEAST_PART * _BYTES_PER_BYTE:
            raise TrainerError(
                f"the memory limit of {limit:,} bytes is too low: the program itself takes {taken:,} with {threads} "
                f"threads, and the text at least {_LEAST_PART * _BYTES_PER_BYTE:,}; raise it (--memory-limit), or use "
                "fewer --threads"
            )
        self.part = max(_LEAST_PART, left // _BYTES_PER_BYTE)
        self.record = max(_LEAST_PART * _BYTES_PER_BYTE, left) // 2

    def check_record(self, name: str, number: int, text: str) -> None:
        """Raise a CorpusError if the text of a record is longer than a part may be."""
        if 4 * len(text) > self.part and (size := len(text.encode(errors="surrogatepass"))) > self.part:
            raise CorpusError(str(TooLongError(f"{name}, record {number},", size, "the end of a record")))
