"""Ids to bytes, by compiled kernels."""

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from shared.bpe.encoding.template import AnyIds
from shared.bpe.kernels.decoding import CONTROL, NO_TOKEN, SLACK, TOKEN, copy_tokens, measure
from shared.bpe.kernels.tables import join_tokens

# Ids that are decoded at once, so that their memory is still in the processor's cache when it is used again.
_BLOCK = 1 << 15


class Decoder:
    """Joins the bytes of tokens.

    Args:
        tokens: All tokens by id, added ones included.
        control_ids: Ids that can be skipped.
    """

    def __init__(self, tokens: Mapping[int, bytes], control_ids: Collection[int]):
        token_bytes, self._starts = join_tokens(tokens)
        self._bytes = np.concatenate([token_bytes, np.zeros(SLACK, np.uint8)])
        self._kinds = np.full(len(self._starts) - 1, NO_TOKEN, np.uint8)
        self._kinds[list(tokens)] = TOKEN
        self._kinds[list(control_ids)] = CONTROL

    def join(self, ids: AnyIds, *, skip_control: bool, limit: int) -> bytes | None:
        """The bytes of ids; None if one is not an integer or not in the vocabulary, which the caller then reports.

        Ends early if they exceed `limit` bytes.
        """
        parts = []
        total = 0
        for start in range(0, len(ids), _BLOCK):
            block = _as_array(ids[start : start + _BLOCK])
            size = -1 if block is None else measure(block, self._starts, self._kinds, skip_control)
            if size < 0:
                return None
            out = np.empty(size + SLACK, np.uint8)
            copy_tokens(block, self._starts, self._kinds, skip_control, self._bytes, out)
            parts.append(out.data[:size])
            total += size
            if total > limit:
                break
        return b"".join(parts)


def _as_array(ids: AnyIds) -> npt.NDArray[np.int64] | None:
    """Ids as an array; None if some are not plain integers of at most 64 bits."""
    if isinstance(ids, np.ndarray):
        # Booleans are not ids; of the unsigned types, only 64 bits could overflow.
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.dtype == np.uint64:
            return None
        return np.ascontiguousarray(ids, np.int64)
    if set(map(type, ids)) - {int}:
        return None
    try:
        return np.fromiter(ids, np.int64, len(ids))
    except OverflowError:
        return None
