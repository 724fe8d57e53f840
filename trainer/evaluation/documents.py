"""Reading the documents of texts and token files as ids, a part at a time."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shared.bpe import Tokenizer
from shared.bpe.training import Errors, Source
from shared.chat import TemplateFile
from trainer.conversations.messages import FIELDS
from trainer.errors import UsageError
from trainer.evaluation.windows import Ids, Mask
from trainer.settings.encode import TRAIN, VALIDATION
from trainer.text.batches import batches
from trainer.text.documents import labeled_texts, text_blocks, up_to_separators
from trainer.text.memory import EncodingMemory
from trainer.text.sources import STANDARD_INPUT, Input, Records, expand, open_inputs, open_records
from trainer.text.utf8 import has_text
from trainer.tokens.conversation_encoder import ConversationEncoder, LengthLimit
from trainer.tokens.encoded_chunk import EncodedChunk
from trainer.tokens.job import end_of_text_id
from trainer.tokens.token_file import TokenFile, is_token_file

logger = logging.getLogger(__name__)

_RECORD_CHARACTERS = 3 << 18  # of records that are encoded together


class Part(NamedTuple):
    """A part of a document, or all of it.

    Attributes:
        source: The name of the source that it counts for.
        ids: The ids, without those that begin and end documents.
        ends: Whether it is the last part of the document.
        mask: Of conversations: which ids are scored. These ids have the one that ends the conversation.
    """

    source: str
    ids: Ids
    ends: bool
    mask: Mask | None = None


@dataclass(frozen=True)
class OpenedFile:
    """A text or token file to be scored.

    Attributes:
        source: The name of the source that it counts for, unless its records name another one.
        size: Its bytes of text; None if unknown.
        read: Called for its documents.
    """

    source: str
    size: int | None
    read: Callable[[], Iterator[Part]]


@dataclass(frozen=True)
class DocumentReader:
    """How texts become documents of ids.

    Attributes:
        tokenizer: The tokenizer.
        separator: What separates the documents of a text; None if every text is one document.
        text_field: Of JSON lines and parquet files.
        errors: Whether bytes that are not UTF-8 are an error or become U+FFFD.
        memory: Limits for parts of a text and records.
        by: The source that documents count for: `input`, as it was named; `file`; or else this field of their records.
        template: The chat template of conversations; None if records are texts.
    """

    tokenizer: Tokenizer
    separator: str | None
    text_field: str
    errors: Errors
    memory: EncodingMemory
    by: str
    template: TemplateFile | None = None

    def open(self, named: Sequence[Path]) -> list[OpenedFile]:
        """The files that the command line names.

        Args:
            named: As in `open_inputs`, and token files: their manifest NAME.json, or NAME.bin.

        Raises:
            UsageError: If nothing is named, or no file matches.
            CorpusError: If a file does not exist or cannot be read.
            TokenFileError: If a token file is damaged, comes from another tokenizer, or has ids beyond the vocabulary.
        """
        if not named:
            raise UsageError(
                "nothing to evaluate is given; name text or token files, a directory, - for standard input, or "
                "questions with --tasks"
            )
        return [opened for given in named for opened in self._open(given)]

    def _open(self, given: Path) -> Iterator[OpenedFile]:
        manifests = [given / f"{name}.json" for name in (VALIDATION, TRAIN) if (given / f"{name}.json").exists()]
        if manifests:
            raise UsageError(f"{given} is a directory of token files: name one of them, such as {manifests[0]}")
        for path in [given] if is_token_file(given) else expand(given):
            name = _name(path if self.by == "file" else given)
            if is_token_file(path):
                self._refuse_field(path)
                file = TokenFile.open_path(path, fingerprint=self.tokenizer.fingerprint)
                file.verify()
                yield OpenedFile(name, file.manifest.bytes, partial(self._read_tokens, name, file))
                continue
            if self.template is not None:
                self._refuse_field(path)
                [conversations] = open_records([path], FIELDS)
                yield OpenedFile(name, None, partial(self._read_conversations, name, conversations, self.template))
                continue
            [given_text] = open_inputs([path], text_field=self.text_field)
            if isinstance(given_text.content, Records):
                yield OpenedFile(name, None, partial(self._read_records, name, given_text.content))
            else:
                self._refuse_field(path)
                read = partial(self._read_text, name, given_text.content)
                yield OpenedFile(name, given_text.content.size or None, read)

    def _refuse_field(self, path: Path) -> None:
        if self.by not in {"input", "file"}:
            raise UsageError(f"{path} has no records with a field {self.by!r} to group by; use --by input or --by file")

    def _read_tokens(self, name: str, file: TokenFile) -> Iterator[Part]:
        end = file.manifest.end_of_text_id
        if file.manifest.has_mask:
            for ids, mask in file.masked_blocks():
                yield from _conversations(name, ids, mask, end)
            return
        for ids in file.blocks():
            begin = 0
            for place in np.flatnonzero(ids == end).tolist():
                yield Part(name, ids[begin:place], ends=True)
                begin = place + 1
            # After the end of the last document there is only white space, if anything.
            if begin < len(ids):
                yield Part(name, ids[begin:], ends=False)

    def _read_conversations(self, name: str, given: Input, template: TemplateFile) -> Iterator[Part]:
        end = end_of_text_id(self.tokenizer, self.separator)
        limit = LengthLimit(None)  # a longer one is scored in several windows
        encoder = ConversationEncoder(self.tokenizer, template, end, limit, memory=self.memory, threads=1)
        for chunk in encoder.encode([given]):
            if isinstance(chunk, EncodedChunk) and chunk.mask is not None:
                for kind, (count, first) in chunk.findings.items():
                    logger.warning("conversations: %s: %s (the first: %s)", f"{count:,}", kind, first)
                yield from _conversations(name, chunk.ids, chunk.mask, end)

    def _read_records(self, name: str, records: Records) -> Iterator[Part]:
        label = None if self.by in {"input", "file"} else self.by
        rows = labeled_texts(records, label, self.errors, self.memory)
        for batch in batches(rows, _RECORD_CHARACTERS, itemgetter(0)):
            yield from self._encode([value if label else name for _, value in batch], [text for text, _ in batch])

    def _read_text(self, name: str, text: Source) -> Iterator[Part]:
        """Documents are what is between separators; after the last one there is none unless text follows."""
        is_open = False
        blocks = text_blocks(text, self.separator, self.errors, self.memory.part)
        for piece, continues in self._blocks(text.name, blocks):
            *whole, last = [piece] if self.separator is None else piece.split(self.separator)
            yield from self._encode([name] * len(whole), whole)
            is_open = has_text(last.encode()) or (is_open and not whole)
            if last:
                ids = self.tokenizer.encode_documents(last.encode(), None, continues=continues)
                yield Part(name, ids, ends=False)
        if is_open:
            yield Part(name, _NONE, ends=True)

    def _blocks(self, name: str, text: Iterator[str]) -> Iterator[tuple[str, bool]]:
        """A text in blocks, cut neither within a token nor within a separator; and whether they continue a document."""
        if self.tokenizer.can_split_bytes:
            return ((block, False) for block in text)
        if self.separator is None:
            return self.tokenizer.chunker().parts(text, name=name, longest=self.memory.part)
        whole = up_to_separators(text, self.separator, name, self.memory.part)
        return ((documents, False) for documents in whole)

    def _encode(self, sources: Iterable[str], texts: Sequence[str]) -> Iterator[Part]:
        """Whole documents."""
        for source, ids in zip(sources, self.tokenizer.encode_batch_to_numpy(texts), strict=True):
            yield Part(source, ids, ends=True)


def _conversations(name: str, ids: Ids, mask: Mask, end: int) -> Iterator[Part]:
    """Conversations, of which the last one may be cut."""
    begin = 0
    for stop in (np.flatnonzero(ids == end) + 1).tolist():
        yield Part(name, ids[begin:stop], ends=True, mask=mask[begin:stop])
        begin = stop
    if begin < len(ids):
        yield Part(name, ids[begin:], ends=False, mask=mask[begin:])


_NONE: Ids = np.empty(0, np.uint32)


def _name(path: Path) -> str:
    return "standard input" if path in STANDARD_INPUT else str(path)
