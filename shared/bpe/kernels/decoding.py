"""Ids to bytes: how long they are together, then one copy each.

token_bytes    the bytes of all tokens, end to end, and SLACK more
token_starts   token `id` is token_bytes[token_starts[id]:token_starts[id + 1]]
kinds          what each id is: NO_TOKEN, TOKEN, or CONTROL
"""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import load_word, store_word
from shared.kernels.types import Array, Bytes, Int64Array, Uint8Array, boolean, int64

NO_TOKEN, TOKEN, CONTROL = 0, 1, 2

# Bytes past the end that a copy may read and write, since bytes are moved eight at a time.
SLACK = 8

Ids = Annotated[NDArray[np.int64], Array(np.dtype("int64"), readonly=True)]


@compiled
def measure(ids: Ids, token_starts: Int64Array, kinds: Bytes, skip_control: boolean) -> int64:
    """The bytes that ids stand for together; -1 if one of them is no token's."""
    size = 0
    for token_id in ids:
        if token_id < 0 or token_id >= kinds.size or kinds[token_id] == NO_TOKEN:
            return -1
        if not (skip_control and kinds[token_id] == CONTROL):
            size += token_starts[token_id + 1] - token_starts[token_id]
    return size


@compiled
def copy_tokens(
    ids: Ids, token_starts: Int64Array, kinds: Bytes, skip_control: boolean, token_bytes: Bytes, out: Uint8Array
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
