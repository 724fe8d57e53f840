"""Hashes of ids, to check whether packages agree."""

import bisect
import hashlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.bpe.corpus import SEPARATOR

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def digests_of(result: Any, texts: Sequence[str], marks: Sequence[int] = ()) -> dict[str, str]:
    """Hashes of the ids of texts: of all, and of those that begin within the first bytes of the corpus for each mark.

    Args:
        result: What a package gives for the texts.
        texts: The documents of a corpus in order.
        marks: Bytes. Those beyond the texts are passed over.
    """
    ids, ends = flat(result)
    places = list(itertools.accumulate((len(text.encode()) + len(SEPARATOR) for text in texts), initial=0))
    digests = {"all": digest(ids.tobytes())}
    for mark in marks:
        count = bisect.bisect_left(places, mark)  # documents that begin before the mark
        if 0 < count <= len(texts):
            digests[str(mark)] = digest(ids[: ends[count - 1]].tobytes())
    return digests


def digest(data: bytes) -> str:
    """Half a SHA-256."""
    return hashlib.sha256(data).hexdigest()[:32]


def as_batch(ids: Any) -> Any:
    """What a package gives for one text, in the form of what it gives for many; for some that is the same."""
    return ids if isinstance(ids, tuple) else [ids]


def flat(result: Any) -> "tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]":
    """The ids of all texts one after the other, and where each text ends, of what any package gives for a batch."""
    import numpy as np

    if isinstance(result, tuple):  # the ids of all, and where they begin and end, or how many they are
        ids, rows = _array(result[0], np.uint32), _array(result[1], np.int64)
        is_offsets = len(rows) > 0 and rows[0] == 0 and rows[-1] == len(ids)
        return ids, rows[1:] if is_offsets else np.cumsum(rows)
    if hasattr(result, "layout"):  # an Awkward array
        import awkward

        lengths = awkward.to_numpy(awkward.num(result))
        return awkward.to_numpy(awkward.flatten(result)).astype(np.uint32), np.cumsum(lengths, dtype=np.int64)
    batch = [_array(row, np.uint32) for row in result]
    return np.concatenate([np.zeros(0, np.uint32), *batch]), np.cumsum([len(row) for row in batch], dtype=np.int64)


def _array(values: Any, dtype: Any) -> Any:
    """An array of numbers, or of the bytes that some packages give instead."""
    import numpy as np

    return np.frombuffer(values, dtype) if isinstance(values, bytes) else np.asarray(values).astype(dtype)
