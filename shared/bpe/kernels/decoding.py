"""Ids to bytes: how long they are together, then one copy each.

token_bytes    the bytes of all tokens, end to end, and SLACK more
token_starts   token `id` is token_bytes[token_starts[id]:token_starts[id + 1]]
kinds          what each id is: NO_TOKEN, TOKEN, or CONTROL
"""

import numpy as np
import numpy.typing as npt

from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import load_word, store_word
from shared.kernels.types import BYTES, INT64S, boolean, int64

NO_TOKEN, TOKEN, CONTROL = 0, 1, 2

# Bytes past the end that a copy may read and write, since bytes are moved eight at a time.
SLACK = 8

_IDS = types.Array(types.int64, readonly=True)


@compiled(int64, _IDS, INT64S, BYTES, boolean)
def measure(
    ids: npt.NDArray[np.int64], token_starts: npt.NDArray[np.int64], kinds: npt.NDArray[np.uint8], skip_control: bool
) -> int:
    """The bytes that ids stand for together; -1 if one of them is no token's."""
    size = 0
    for token_id in ids:
        if token_id < 0 or token_id >= kinds.size or kinds[token_id] == NO_TOKEN:
            return -1
        if not (skip_control and kinds[token_id] == CONTROL):
            size += token_starts[token_id + 1] - token_starts[token_id]
    return size


@compiled(types.void, _IDS, INT64S, BYTES, boolean, BYTES, types.Array(types.uint8))
def copy_tokens(
    ids: npt.NDArray[np.int64],
    token_starts: npt.NDArray[np.int64],
    kinds: npt.NDArray[np.uint8],
    skip_control: bool,
    token_bytes: npt.NDArray[np.uint8],
    out: npt.NDArray[np.uint8],
) -> None:
    """Write the bytes of ids that `measure` has passed; `out` needs SLACK more than their size."""
    filled = 0
    for token_id in ids:
        if skip_control and kinds[token_id] == CONTROL:
            continue
        start, end = token_starts[token_id], token_starts[token_id + 1]
        for place in range(start, end, 8):
            store_word(out, filled + place - start, load_word(token_bytes, place))
        filled += end - start
