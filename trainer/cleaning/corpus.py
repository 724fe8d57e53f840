"""What is cleaned, as any process of any machine can read it."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from trainer.cleaning.filters import hash_of_filter
from trainer.cleaning.signatures import Banding, check_installed
from trainer.errors import TrainerError, UsageError
from trainer.settings.clean import CleanSettings
from trainer.storage.remote import display_path
from trainer.text.documents import whole_documents
from trainer.text.formats import stretch_name
from trainer.text.memory import EncodingMemory
from trainer.text.sections import Section, divide, open_section, size_of_input
from trainer.text.sources import Input, open_input
from trainer.text.utf8 import CorpusError

_UNLIMITED = 1 << 62


class Piece(NamedTuple):
    """A section of an input.

    Attributes:
        path: The input.
        version: As in `Source`, when the command began.
        section: The section.
        size: Its bytes.
    """

    path: Path
    version: str | None
    section: Section
    size: int


Part = tuple[Piece, ...]
"""What a task reads."""


def divide_inputs(inputs: Sequence[Input], settings: CleanSettings, part_bytes: int) -> list[Part]:
    """The parts of a corpus; see `divide`."""
    parts = divide(inputs, settings.document_separator, part_bytes, at_any_pretoken=False)
    return [tuple(_piece(inputs[section.source], section) for section in part) for part in parts]


def _piece(given: Input, section: Section) -> Piece:
    end = size_of_input(given) if section.end is None else section.end
    return Piece(given.path, given.content.version, section._replace(source=0), end - section.begin)


def tools_of(settings: CleanSettings) -> dict[str, str]:
    """What the result depends on besides the text and the settings: hashes of the files of filters, and a library.

    Raises:
        UsageError: A filter or the library is not there.
    """
    tools = {f"--filter {name}": hash_of_filter(name) for name in settings.filter}
    if settings.near_duplicates < 1:
        check_installed()
        tools["rensa"] = version("rensa")
    return tools


@dataclass(frozen=True)
class Corpus:
    """How parts are read.

    Attributes:
        settings: How.
        tools: Of the process that began the work; see `tools_of`.
        processes: How many share the memory limit.
    """

    settings: CleanSettings
    tools: Mapping[str, str]
    processes: int = 1

    @property
    def banding(self) -> Banding | None:
        """The bands of signatures; None where only equal documents are removed."""
        threshold = self.settings.near_duplicates
        return None if threshold == 1 else Banding.for_threshold(threshold)

    def check_tools(self) -> None:
        """Raise a TrainerError that names this node unless it has the same filters and library."""
        node = socket.gethostname()
        try:
            here = tools_of(self.settings)
        except UsageError as error:
            raise TrainerError(
                f"on the node {node}: {error}; all nodes need it: install it there, or put the file of a filter into "
                "the current folder, on a disk that they share"
            ) from None
        for name, expected in self.tools.items():
            if here[name] != expected:
                raise TrainerError(
                    f"{name}: the node {node} has another version than the process that began the work, or it was "
                    "edited meanwhile; the result would depend on the node"
                )

    def documents(self, part: Part) -> Iterator[tuple[str, str]]:
        """The documents of a part, each with its place, in order.

        Raises:
            CorpusError: As in `whole_documents`; or an input is not what it was when the command began.
        """
        limit = self.settings.memory_bytes
        memory = EncodingMemory(None if limit is None else limit // self.processes, 1)
        for piece in part:
            given = open_input(piece.path, text_field=self.settings.text_field)
            if given.content.version != piece.version and self.settings.ray is None:
                raise CorpusError(f"{display_path(piece.path)} was changed since the command began: run it again")
            if given.content.version != piece.version:
                raise CorpusError(
                    f"{display_path(piece.path)} was changed since the command began, or is not the same file on the "
                    f"node {socket.gethostname()}: {piece.version} then, {given.content.version or 'no file'} there; "
                    "all nodes must find the same files, on a disk that they share or in an object store"
                )
            given = open_section(piece.section, given)
            name = stretch_name(piece.path, piece.section.begin)
            texts = whole_documents(given, self.settings.document_separator, self.settings.errors, _UNLIMITED, memory)
            for number, text in enumerate(texts, start=1):
                yield text, f"{name}, document {number:,}"
