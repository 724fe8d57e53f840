"""A random sample of documents, drawn while they are read."""

import hashlib
import heapq
from collections.abc import Iterable

from trainer.text.utf8 import CorpusError

_BYTES_PER_CHARACTER = 4  # at most, in memory


def sample_documents(documents: Iterable[str], count: int, seed: int, max_bytes: int) -> tuple[list[str], int]:
    """Draw documents, each with the same probability, without replacement.

    Every document has a random key, a function of its number and the seed; those with the lowest keys are kept. So the
    sample of 10 is part of the sample of 20.

    Args:
        documents: Read once, and not held.
        count: How many; all if there are fewer.
        seed: 0 or more.
        max_bytes: Memory that the sample may take.

    Returns:
        The sample in the order of the text, and the number of documents that it was drawn from.

    Raises:
        CorpusError: If it does not fit into the memory.
    """
    kept: list[tuple[int, int, str]] = []  # a heap, with the highest key first
    size = total = 0
    for total, document in enumerate(documents, start=1):
        item = (-_key(total - 1, seed), total, document)
        size += len(document)
        if len(kept) < count:
            heapq.heappush(kept, item)
        else:
            size -= len(heapq.heappushpop(kept, item)[2])
        if size * _BYTES_PER_CHARACTER > max_bytes:
            raise CorpusError(
                f"a sample of {count:,} documents has more than {size:,} characters, which do not fit into the memory "
                "limit; lower --sample, or raise --memory-limit"
            )
    return [document for _, _, document in sorted(kept, key=lambda item: item[1])], total


def _key(document: int, seed: int) -> int:
    digest = hashlib.blake2b(f"sample {seed}:{document}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
