"""Plain text to ids, by compiled kernels: their caches and buffers, and which thread uses them."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shared.bpe.encoding.pretoken_memory import PretokenMemory
from shared.bpe.encoding.text_memory import Utf8, Utf8Texts, locate, utf8_at
from shared.bpe.errors import SurrogateError
from shared.bpe.kernels.boundaries import SpecialTokens, next_cut
from shared.bpe.kernels.classes import character_classes
from shared.bpe.kernels.encoding import SLACK, Texts, encode_pretokens, encode_string, encode_texts
from shared.bpe.kernels.pretoken_cache import Table, is_full, new_cache
from shared.bpe.kernels.pretoken_merging import NO_MEMORY
from shared.bpe.kernels.scanner import MIN_CUTS, PATTERN_IDS, PIECES, Scanner, scan
from shared.bpe.kernels.scanner_pieces import adjacency
from shared.bpe.kernels.tables import Tables, build_tables
from shared.bpe.kernels.texts import split_ids
from shared.bpe.patterns.named import BEFORE_SPACES, PATTERNS, TimeBudget, split
from shared.bpe.vocabulary import Vocabulary
from shared.kernels.compiling import BoundKernel
from shared.kernels.intrinsics import BLOCK
from shared.kernels.numpy_api import numpy_api
from shared.system.cpu_count import available_processors
from shared.system.thread_pool import in_order

Ids = npt.NDArray[np.uint32]

_CUTS = 1 << 11
# Characters of short texts that are encoded by one call, and that make another thread worth starting; and texts that
# are counted at once.
_SHARE, _COUNTED = 3 << 18, 64
# Bytes for which `encode_short` has room; it hands longer texts on.
_SHORT = 1 << 14
# Bytes of a long text that are encoded by one call.
_PART = 1 << 18
# Ids for which a buffer is reused: new memory costs more than the copy out of the buffer.
_SMALL = 1 << 21


class Cutting(NamedTuple):
    """The fields of a `Scanner` that depend on the vocabulary; a custom pattern has the number -1."""

    pattern: int
    classes: npt.NDArray[np.uint8]
    joins: npt.NDArray[np.uint8]


class _Workspace:
    """The buffers that one thread at a time uses, and how it sees the pretokens of all."""

    def __init__(self, tables: Tables, cutting: Cutting, pretokens: tuple[Table, Table], *, text: int, out: int):
        self._tables = tables
        self.scanner = Scanner(*cutting, np.empty(_CUTS, np.int64))
        self.text = np.empty(text + BLOCK, np.uint8)
        self.out = np.empty(out + SLACK, np.uint32)
        self.use(pretokens)

    def use(self, pretokens: tuple[Table, Table]) -> None:
        """Go on with other tables of pretokens."""
        self.pretokens = pretokens
        self.cache = new_cache(*pretokens)
        call = encode_string.prepare(0, numpy_api(), self._tables, self.cache, self.scanner, self.text, self.out)
        self.encode_string = call.builtin
        # To pass the vocabulary and the cache takes longer than to encode a short text.
        self.encode_texts = BoundKernel(encode_texts, self._tables, self.cache, self.scanner)
        self.encode_pretokens = BoundKernel(encode_pretokens, self._tables, self.cache)


class Encoder:
    """Splits plain text into pretokens and merges each. Any number of threads may share one; none waits for another.

    Args:
        vocabulary: Tokens, merges and pattern. Added tokens and normalization are left to the caller.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._expression = vocabulary.pattern
        self._cutting = _cutting(vocabulary)
        self._tables = build_tables(vocabulary)
        self._memory = PretokenMemory()
        # That of short texts, whose threads take turns by the interpreter lock; and others.
        self._workspace = self._new_workspace(_SHORT, _SHORT)
        self._idle = [self._new_workspace(2 * _SHARE, _SMALL)]

    def encode_short(self, text: str) -> Ids:
        """The ids of a short text, by a named pattern or pieces, with the least overhead; keeps the interpreter lock.

        Raises:
            SurrogateError: The text holds a lone surrogate.
        """
        try:
            ids: Ids | None = self._workspace.encode_string(text)
            if ids is not None:
                return ids
        except UnicodeEncodeError:  # below it is raised again, and says where
            pass
        return self._encode_located(locate([text]), TimeBudget())[0]

    def encode_each(self, texts: Iterable[str], *, max_threads: int | None = None) -> Iterator[Ids]:
        """The ids of each text, in order; few of the texts are held at a time, and all share one `TimeBudget`.

        Args:
            texts: Plain text.
            max_threads: The most threads; never more than there are processors.

        Raises:
            SurrogateError: A text holds a lone surrogate.
        """
        budget = TimeBudget()
        work = (partial(self._encode_share, *share, budget) for share in _shares(texts))
        return chain.from_iterable(in_order(work, _num_threads(max_threads)))

    def encode_long(self, text: str, *, max_threads: int | None = None) -> Ids:
        """The ids of a long text, by a named pattern or pieces, on all processors or at most `max_threads` of them.

        Raises:
            SurrogateError: It holds a lone surrogate.
        """
        located = locate([text])
        data = utf8_at(int(located.addresses[0]), int(located.ends[0]))
        bounds = [0]
        while bounds[-1] < len(data):
            bounds.append(self._next_cut(data, bounds[-1] + _PART))
        whole = np.zeros(1, np.int64)

        def encode(start: int, end: int) -> Ids:
            return self.encode_parts(data[start:end].data, whole, whole + (end - start))[0]

        # Pages that are never written to cost nothing, so this is cheaper than keeping the ids of all parts.
        out, count = np.empty(len(data), np.uint32), 0
        work = (partial(encode, *block) for block in pairwise(bounds))
        for ids in in_order(work, _num_threads(max_threads)):
            out[count : count + len(ids)] = ids
            count += len(ids)
        out.resize(count, refcheck=False)
        return out

    def encode_parts(
        self,
        data: "bytes | memoryview",
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        *,
        terminator: int = -1,
        dtype: npt.DTypeLike = np.uint32,
        budget: TimeBudget | None = None,
    ) -> tuple["npt.NDArray[np.unsignedinteger[Any]]", npt.NDArray[np.int64]]:
        """The ids of texts in a buffer, and where those of each text end; on the caller's thread.

        Args:
            data: UTF-8.
            starts: The first byte of each text.
            ends: The byte behind each text.
            terminator: An id to put after each text except the last; -1 for none.
            dtype: The type of the ids.
            budget: CPU time of a custom pattern for these texts and others; None for these alone.
        """
        array = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        workspace = self._take_workspace()
        texts = Texts(array, starts, ends, terminator)
        encoded = self._encode(workspace, texts, dtype, budget or TimeBudget())
        self._idle.append(workspace)
        return encoded

    def _next_cut(self, data: Utf8, begin: int) -> int:
        """The first place from `begin` on where text may be cut with anything around it; its end if there is none."""
        if self._cutting.pattern != PIECES:
            nothing = SpecialTokens(np.empty(0, np.uint8), np.zeros(1, np.int64))
            return int(next_cut(data, begin, len(data), character_classes(), nothing))
        while begin < len(data) and data[begin] & 0xC0 == 0x80:
            begin += 1
        cuts = np.empty(MIN_CUTS, np.int64)
        if begin >= len(data):
            return len(data)
        scan(Scanner(*self._cutting, cuts), data, begin, len(data))
        return int(cuts[0])

    def _encode_share(self, first: int, texts: Sequence[str], size: int, budget: TimeBudget) -> list[Ids]:
        """The ids of texts of so many characters, of which the first is that of this index."""
        if size > _SHORT or self._cutting.pattern < 0:  # custom
            return self._encode_located(locate(texts, first), budget)
        encoded = []
        for index, text in enumerate(texts, first):
            try:
                encoded.append(self.encode_short(text))
            except SurrogateError as error:
                error.index = index
                raise
        return encoded

    def _encode_located(self, located: Utf8Texts, budget: TimeBudget) -> list[Ids]:
        workspace = self._take_workspace()
        bounds = np.concatenate([np.zeros(1, np.int64), located.ends])
        data = located.joined(workspace.text, BLOCK)
        ids, id_ends = self._encode(workspace, Texts(data, bounds[:-1], bounds[1:], -1), np.uint32, budget)
        self._idle.append(workspace)
        if len(id_ends) == 1:
            return [ids]
        split: list[Ids] = split_ids.prepare(0, numpy_api(), ids, id_ends).builtin(ids)
        return split

    def _encode(
        self, workspace: _Workspace, texts: Texts, dtype: npt.DTypeLike, budget: TimeBudget
    ) -> tuple["npt.NDArray[np.unsignedinteger[Any]]", npt.NDArray[np.int64]]:
        """As `encode_parts`."""
        size = int((texts.ends - texts.starts).sum()) + len(texts.ends) + SLACK
        is_small = size <= len(workspace.out)
        out = workspace.out if is_small else np.empty(size, np.uint32)
        id_ends = self._fill(workspace, texts, out, budget)
        count = int(id_ends[-1]) if len(id_ends) else 0
        if not is_small:
            out.resize(count, refcheck=False)
        return out[:count].astype(dtype, copy=is_small), id_ends

    def _fill(self, workspace: _Workspace, texts: Texts, out: Ids, budget: TimeBudget) -> npt.NDArray[np.int64]:
        """Write the ids of texts to `out`; returns where those of each text end."""
        id_ends = np.empty(len(texts.ends), np.int64)
        if self._cutting.pattern < 0:
            self._encode_by_expression(workspace, texts, out, id_ends, budget)
            return id_ends
        state = np.zeros(3, np.int64)
        while state[0] < len(id_ends):
            workspace.encode_texts(texts, out, id_ends, state)
            if state[0] < len(id_ends):
                _check_memory(state[2], len(texts.data))
                self._grow(workspace)
        return id_ends

    def _encode_by_expression(
        self, workspace: _Workspace, texts: Texts, out: Ids, id_ends: npt.NDArray[np.int64], budget: TimeBudget
    ) -> None:
        """`encode_texts` for a custom pattern, which only the `regex` package can run."""
        filled, data = 0, texts.data
        for index, (start, end) in enumerate(zip(texts.starts.tolist(), texts.ends.tolist(), strict=True)):
            pretokens = split(self._expression, data[start:end].tobytes().decode(), budget)
            cuts = start + np.cumsum([len(pretoken.encode()) for pretoken in pretokens], dtype=np.int64)
            filled = workspace.encode_pretokens(data, start, cuts, len(cuts), out, filled)
            _check_memory(filled, end - start)
            if is_full(workspace.cache.table):
                self._grow(workspace)
            if texts.terminator >= 0 and index + 1 < len(id_ends):
                out[filled] = texts.terminator
                filled += 1
            id_ends[index] = filled

    def _take_workspace(self) -> _Workspace:
        """An unused workspace. The caller returns it to the idle ones, unless it was interrupted."""
        pretokens = self._memory.tables
        try:
            workspace = self._idle.pop()  # atomic, like append
        except IndexError:
            return self._new_workspace(2 * _SHARE, _SMALL)
        if workspace.pretokens is not pretokens:
            workspace.use(pretokens)
        return workspace

    def _new_workspace(self, text: int, out: int) -> _Workspace:
        return _Workspace(self._tables, self._cutting, self._memory.tables, text=text, out=out)

    def _grow(self, workspace: _Workspace) -> None:
        """Go on with a table that is not full."""
        self._memory.grow(workspace.cache.table)
        self._idle.clear()  # they would keep older tables
        for each in (workspace, self._workspace):
            each.use(self._memory.tables)


def _num_threads(most: int | None) -> int:
    return available_processors() if most is None else min(available_processors(), most)


def _cutting(vocabulary: Vocabulary) -> Cutting:
    if vocabulary.byte_tokens:
        pieces = (vocabulary.tokens[token].decode() for token in {*vocabulary.merged})
        return Cutting(PIECES, *adjacency(pieces, space_begins=vocabulary.pattern == BEFORE_SPACES))
    names = {expression: name for name, expression in PATTERNS.items()}
    pattern = PATTERN_IDS.get(names.get(vocabulary.pattern, ""), -1)
    return Cutting(pattern, character_classes(), np.empty(0, np.uint8))


def _check_memory(filled: int, length: int) -> None:
    if filled == NO_MEMORY:
        raise MemoryError(f"a text of {length:,} bytes has a pretoken too long for the available memory")


def _shares(texts: Iterable[str]) -> Iterator[tuple[int, Sequence[str], int]]:
    """Groups of consecutive texts, of about _SHARE characters each: the index of the first, the texts, their size."""
    texts = iter(texts)
    share: list[str] = []
    first = size = 0
    while counted := [*islice(texts, _COUNTED)]:
        share += counted
        size += sum(map(len, counted))
        if size >= _SHARE:
            yield first, share, size
            first += len(share)
            share, size = [], 0
    if share:
        yield first, share, size
