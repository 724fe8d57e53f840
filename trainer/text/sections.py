"""Parts of texts that can be read alone, on any machine: cut where a document ends, by their content alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from shared.bpe.training import UNLIMITED, Chunk, Source, Specials, TextFile
from trainer.text.parquet import RowGroups
from trainer.text.sizes import size_of
from trainer.text.sources import Input, Records
from trainer.text.utf8 import CorpusError, has_text

_BLOCK_BYTES = 1 << 20


class Section(NamedTuple):
    """A stretch of an input.

    Attributes:
        source: Number of the input.
        begin: Its first byte.
        end: The byte behind its last one; None for the rest, as of an input that can only be read as a whole.
    """

    source: int
    begin: int = 0
    end: int | None = None

    @property
    def is_last(self) -> bool:
        """Whether the input ends with it."""
        return self.end is None


class TextSection:
    """A section of a text file, as a `Source`.

    Args:
        text: The file.
        begin: The first byte.
        end: The byte behind the last one; None for the rest.
    """

    def __init__(self, text: TextFile, begin: int, end: int | None) -> None:
        self.name = text.name
        self.version = text.version
        self.size = (text.size if end is None else end) - begin
        self._text = text
        self._begin, self._end = begin, text.size if end is None else end

    def chunks(self, specials: Specials, begin: int, longest: int = UNLIMITED) -> Iterator[Chunk]:
        """As in `Source`."""
        return self._text.chunks(specials, max(begin, self._begin), longest, self._end)


def open_section(section: Section, given: Input) -> Input:
    """What a section of an input reads."""
    if section == Section(section.source):
        return given
    if isinstance(given.content, Records):
        return replace(given, content=replace(given.content, stretch=section[1:]))
    assert isinstance(given.content, TextFile)
    return Input(given.path, TextSection(given.content, section.begin, section.end), given.is_plain)


def size_of_input(given: Input) -> int:
    """Bytes of an input as it is stored; 0 where that is not known, as of a pipe.

    Raises:
        OSError: It is in an object store that cannot be asked.
    """
    content = given.content
    text = content.boundaries if isinstance(content, Records) else content
    return text.size if isinstance(text, TextFile) else size_of(given.path)


def divide(
    inputs: Sequence[Input], separator: str | None, size: int, *, at_any_pretoken: bool
) -> list[tuple[Section, ...]]:
    """Parts of about `size` bytes of text, each sections of some inputs, in order.

    A part ends behind the first separator after so many bytes. Where none follows for as many bytes again, it ends
    between two pretokens, if the tokenizer can be sure of them. JSON lines are divided where a line ends, parquet files
    where a row group does; compressed files are taken as a whole. All by their size on the disk.

    Args:
        inputs: What is divided.
        separator: What ends a document; None where only a file does.
        size: Bytes, at least 1.
        at_any_pretoken: Whether a document may be divided.

    Raises:
        CorpusError: A text cannot be read.
    """
    cut = _Cut((separator or "").encode(), size, at_any_pretoken)
    cut_lines = _Cut(b"\n", size, at_any_pretoken=False)
    parts: list[tuple[Section, ...]] = []
    current: list[Section] = []
    filled = 0
    for number, given in enumerate(inputs):
        content = given.content
        length = size_of_input(given)
        place = _place_function(content, cut, cut_lines)
        if current and (filled >= size or (place is None and filled + length > size)):
            parts.append(tuple(current))
            current, filled = [], 0
        begin = 0
        while place is not None and length - begin > size - filled:
            try:
                end = place(begin + size - filled)
            except OSError as error:
                raise CorpusError(f"{content.name} cannot be read: {error.strerror or error}") from None
            if end is None:
                break
            parts.append((*current, Section(number, begin, end)))
            current, filled, begin = [], 0, end
        current.append(Section(number, begin))
        filled += length - begin
    return [*parts, tuple(current)] if current else parts


def _place_function(content: Source | Records, cut: "_Cut", cut_lines: "_Cut") -> Callable[[int], int | None] | None:
    """What says where a part that should end at some place ends; None for what is taken as a whole."""
    if isinstance(content, TextFile):
        return partial(cut.place, content)
    if not isinstance(content, Records) or content.boundaries is None:
        return None
    if isinstance(content.boundaries, RowGroups):
        return content.boundaries.next_place
    return partial(cut_lines.place, content.boundaries)


class _Cut(NamedTuple):
    """How a text is cut.

    Attributes:
        separator: What ends a document; empty where only a file does.
        size: Bytes after which a document that has not ended is cut.
        at_any_pretoken: Whether it may be.
    """

    separator: bytes
    size: int
    at_any_pretoken: bool

    def place(self, text: TextFile, begin: int) -> int | None:
        """Where a part that should end at `begin` ends; None if it is with the text."""
        if _overlaps_itself(self.separator):
            return None  # where it is depends on the text from the first byte on
        end = self._place(text, begin)
        if end is None or (text.size - end <= _BLOCK_BYTES and not has_text(text.read(end, text.size))):
            return None
        return end

    def _place(self, text: TextFile, begin: int) -> int | None:
        found_text = False
        place = max(0, begin + 1 - len(self.separator)) if self.separator else begin
        while place < text.size:
            data = text.read(place, min(text.size, place + _BLOCK_BYTES + len(self.separator)))
            at = data.find(self.separator) if self.separator else -1
            if at >= 0:
                return place + at + len(self.separator)
            found_text = found_text or has_text(data[max(0, begin - place) :])
            place += _BLOCK_BYTES
            if found_text and self.at_any_pretoken and min(place, text.size) - begin >= self.size:
                return text.boundary(begin, Specials([self.separator] if self.separator else []))
        return None


def _overlaps_itself(separator: bytes) -> bool:
    """Whether one can begin within another, as in three line ends where two separate."""
    return any(separator.startswith(separator[shift:]) for shift in range(1, len(separator)))
