"""What encoders give: chunks of ids, and the ends of the inputs that they are of."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.tokens.token_file import Ids, Mask

Ends = npt.NDArray[np.int64]

Findings = dict[str, tuple[int, str]]
"""What was wrong with some conversations: how many there were, and the first of them."""


class EncodedChunk(NamedTuple):
    """A part of an input, encoded.

    Attributes:
        ids: The ids, with an end-of-text id at the end of each document.
        ends: int64, the places behind these ends in `ids`.
        is_open: Whether anything but white space follows the last of these, or the beginning.
        data: The bytes of the text as they were read; of records, those of their texts.
        num_bytes: Bytes of text that the ids stand for; None if it takes their tokens to know.
        replaced: Characters put in place of bytes that are not UTF-8.
        mask: Of conversations, which ids the loss counts.
        findings: Of conversations.
    """

    ids: Ids
    ends: Ends
    is_open: bool
    data: bytes
    num_bytes: int | None
    replaced: int
    mask: Mask | None = None
    findings: Findings = {}  # noqa: RUF012 - never changed

    @property
    def text_bytes(self) -> int:
        """Size of the text, for progress."""
        return len(self.data)


def ends_in(ids: Ids, end_of_text_id: int) -> Ends:
    """The places behind the ends of documents."""
    return np.flatnonzero(ids == end_of_text_id) + 1


class EndOfInput(NamedTuple):
    """Comes after the last chunk of each input."""
