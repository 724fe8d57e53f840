"""The windows in which a sequence of tokens is scored, each token once."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer]
Mask = npt.NDArray[np.uint8]

# Tokens of the windows that are gathered before they are sorted by length, so that little is padded.
_GATHERED_TOKENS = 1 << 18


class Window(NamedTuple):
    """Consecutive tokens.

    Attributes:
        tokens: [length + 1]: all but the last are the inputs, all but the first the targets.
        scored: How many of the targets are scored, the last ones; those before them only give context.
        source: The name of the source whose score they count for.
        mask: For each token, whether it is scored where it is one of these targets; None if all are.
    """

    tokens: Ids
    scored: int
    source: str = ""
    mask: Mask | None = None

    @property
    def inputs(self) -> int:
        """How many ids the model reads."""
        return len(self.tokens) - 1


class HasInputs(Protocol):
    """What becomes a row of a batch."""

    @property
    def inputs(self) -> int:
        """How many ids the model reads."""


Rows = TypeVar("Rows", bound=HasInputs)


class WindowCutter:
    """Cuts one sequence, which may come in parts, into windows.

    The first window scores all its targets; each further one moves on by `stride` tokens and scores as many, so these
    have at least `length - stride` tokens before them. It is the sliding window of transformers' page "Perplexity of
    fixed-length models", whose `max_length` is `length + 1` here, since it counts the last target in.

    Args:
        length: Inputs of a window.
        stride: From 1 to `length`; `length` cuts windows that do not overlap.
        fill_last: Start the last window of a longer sequence earlier, so that it is full, as lm-evaluation-harness does
            (`get_rolling_token_windows`), rather than one stride after the previous one.
        source: Set in the windows.
    """

    def __init__(self, length: int, stride: int, *, fill_last: bool = False, source: str = "") -> None:
        self._length = length
        self._stride = stride
        self._fill_last = fill_last
        self._source = source
        self._tokens: Ids = np.empty(0, np.int64)
        self._mask: Mask | None = None
        self._next = 1  # index of the first target that has not been scored
        self._is_first = True

    def feed(self, ids: Ids, mask: Mask | None = None) -> Iterator[Window]:
        """The windows that are complete after more of the sequence, each part of which has a mask, or none has."""
        self._tokens = np.concatenate([self._tokens, ids])
        if mask is not None:
            self._mask = mask if self._mask is None else np.concatenate([self._mask, mask])
        while len(self._tokens) - self._next >= (count := self._length if self._is_first else self._stride):
            end = self._next + count
            yield self._window(end - 1 - self._length, end)
            self._next, self._is_first = end, False
        unused = max(0, self._next - self._length)
        self._tokens, self._next = self._tokens[unused:], self._next - unused
        self._mask = None if self._mask is None else self._mask[unused:]

    def finish(self) -> Iterator[Window]:
        """The last window, if targets are left."""
        end = len(self._tokens)
        if end > self._next:
            turn = self._next + self._stride - 1 - self._length
            begin = 0 if self._is_first else end - 1 - self._length if self._fill_last else turn
            yield self._window(begin, end)
            self._next = end

    def _window(self, begin: int, end: int) -> Window:
        mask = None if self._mask is None else self._mask[begin:end]
        return Window(self._tokens[begin:end], end - self._next, self._source, mask)


def consecutive_windows(blocks: Iterable[Ids], length: int, *, begin_id: int | None = None) -> Iterator[Window]:
    """Windows that follow one another and score every token of a sequence once.

    Args:
        blocks: The sequence, in parts of any size.
        length: Inputs of a window.
        begin_id: The id before the first token; without one, scoring starts at the second token.
    """
    cutter = WindowCutter(length, length)
    if begin_id is not None:
        yield from cutter.feed(np.array([begin_id]))
    for block in blocks:
        yield from cutter.feed(block)
    yield from cutter.finish()


def conversation_windows(blocks: Iterable[tuple[Ids, Mask]], end_id: int, length: int) -> Iterator[Window]:
    """Windows that score what the mask of conversations counts, each conversation by itself.

    Args:
        blocks: The ids and their mask, in parts of any size.
        end_id: The id after each conversation.
        length: The most inputs of a window.
    """
    cutter = WindowCutter(length, length)
    for ids, mask in blocks:
        begin = 0
        for end in [*(np.flatnonzero(ids == end_id) + 1).tolist(), len(ids)]:
            yield from cutter.feed(ids[begin:end], mask[begin:end])
            if begin < end and ids[end - 1] == end_id:
                yield from cutter.finish()
                cutter = WindowCutter(length, length)
            begin = end
    yield from cutter.finish()


def document_windows(ids: Ids, end_id: int, length: int) -> Iterator[Window]:
    """A window for each document, with its first `length` tokens after an end-of-text id.

    The last document, which may be cut short, is left out unless it is the only one.

    Args:
        ids: Documents, an end-of-text id behind each.
        end_id: That id.
        length: The most inputs of a window.
    """
    documents = np.split(ids, np.flatnonzero(ids == end_id) + 1)
    for document in documents[:-1] or documents:
        if len(document):
            tokens = np.concatenate([np.array([end_id], ids.dtype), document])[: length + 1]
            yield Window(tokens, len(tokens) - 1)


def batches(windows: Iterable[Window], *, batch_size: int | None, batch_tokens: int) -> Iterator[list[Window]]:
    """Windows of similar length together.

    Args:
        windows: In any order.
        batch_size: Windows of a batch; if None, as many as have `batch_tokens` inputs together.
        batch_tokens: Used if `batch_size` is None.
    """
    gathered: list[Window] = []
    tokens = 0
    for window in windows:
        gathered.append(window)
        tokens += len(window.tokens)
        if tokens >= _GATHERED_TOKENS:
            yield from by_length(gathered, batch_size=batch_size, batch_tokens=batch_tokens)
            gathered, tokens = [], 0
    yield from by_length(gathered, batch_size=batch_size, batch_tokens=batch_tokens)


def by_length(rows: list[Rows], *, batch_size: int | None, batch_tokens: int) -> Iterator[list[Rows]]:
    """Rows of similar length together, the longest first; the list is sorted. Arguments as of `batches`."""
    rows.sort(key=lambda row: row.inputs, reverse=True)
    first = 0
    while first < len(rows):
        size = batch_size or max(1, batch_tokens // rows[first].inputs)
        yield rows[first : first + size]
        first += size
