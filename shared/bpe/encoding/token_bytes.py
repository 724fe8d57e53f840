"""The bytes of ids, with errors that name the invalid id."""

import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cached_property
from operator import index as as_index
from typing import TYPE_CHECKING

import numpy as np

from shared.bpe.encoding.template import AnyIds
from shared.bpe.errors import TextTooLongError, TokenizerError
from shared.system.errors import short_repr

# Numba takes a while to import, and the kernels to load.
if TYPE_CHECKING:
    from shared.bpe.encoding.decoder import Decoder

# Up to this many ids, looking them up one by one is faster than calling compiled code.
_FEW = 1 << 8


class TokenBytes:
    """The bytes of every token.

    Args:
        tokens: All tokens by id, added ones included.
        control_ids: Ids that can be skipped.
    """

    def __init__(self, tokens: Mapping[int, bytes], control_ids: Collection[int]):
        self._tokens = tokens
        self._control_ids = frozenset(control_ids)

    def join(self, ids: AnyIds, *, skip_control: bool, max_bytes: int | None = None) -> bytes:
        """The bytes of ids, joined.

        Raises:
            TokenizerError: An id is not in the vocabulary; names its index.
            TextTooLongError: The bytes exceed `max_bytes`.
        """
        limit = sys.maxsize if max_bytes is None else max_bytes
        joined = self._join(ids, skip_control, limit)
        if len(joined) > limit:
            raise TextTooLongError(f"the tokens stand for more than {limit:,} bytes")
        return joined

    def _join(self, ids: AnyIds, skip_control: bool, limit: int) -> bytes:
        """All bytes, or just enough to exceed `limit`."""
        skipped = self._control_ids if skip_control else frozenset()
        if len(ids) <= _FEW:
            few = ids.tolist() if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" else ids
            if set(map(type, few)) <= {int}:
                with suppress(KeyError):
                    return b"".join([self._tokens[token_id] for token_id in few if token_id not in skipped])
        joined = self._decoder.join(ids, skip_control=skip_control, limit=limit)
        if joined is not None:
            return joined
        # Integers of other types, or an invalid id: one by one, to name it.
        checked = [self._check(token_id, f"token {index}") for index, token_id in enumerate(ids)]
        return b"".join([self._tokens[token_id] for token_id in checked if token_id not in skipped])

    def of(self, token_id: int, *, skip_control: bool) -> bytes:
        """The bytes of one id; none where it is skipped.

        Raises:
            TokenizerError: It is not in the vocabulary.
        """
        if type(token_id) is not int or token_id not in self._tokens:
            token_id = self._check(token_id, "the token")
        return b"" if skip_control and token_id in self._control_ids else self._tokens[token_id]

    @cached_property
    def _decoder(self) -> "Decoder":
        from shared.bpe.encoding.decoder import Decoder

        return Decoder(self._tokens, self._control_ids)

    def _check(self, token_id: object, what: str) -> int:
        try:
            number = as_index(token_id)  # type: ignore[arg-type]  # anything but an integer raises TypeError
        except TypeError:
            raise TokenizerError(f"{what} is {short_repr(token_id)}, which is not an integer") from None
        if isinstance(token_id, bool):
            raise TokenizerError(f"{what} is {short_repr(token_id)}, which is not an integer")
        if number not in self._tokens:
            last = max(self._tokens)
            reason = "no token has that id" if 0 <= number <= last else f"ids are 0 to {last}"
            raise TokenizerError(f"{what} is {short_repr(number)}, but {reason}")
        return number


def decode_strictly(data: bytes) -> str:
    """The text that the bytes of tokens spell.

    Raises:
        TokenizerError: They are not UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"the tokens are not UTF-8 text: byte {error.start} of their {len(data)} bytes is "
            f'0x{data[error.start]:02x} ({error.reason}); errors="replace" puts U+FFFD there'
        ) from None
