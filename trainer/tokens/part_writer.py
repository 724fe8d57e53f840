"""Writing the shards of one part of the text from its chunks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from shared.system.stages import Stage, no_stage
from trainer.text.sections import Section
from trainer.tokens.encoded_chunk import EncodedChunk, EndOfInput, Ends, Findings
from trainer.tokens.part_record import PartRecord, SectionRecord
from trainer.tokens.shard_writer import ShardWriter
from trainer.tokens.splitting import Split
from trainer.tokens.token_file import Ids, Mask


@dataclass
class _Current:
    """How far the section that is being encoded has come.

    Attributes:
        documents: Documents that ended in it.
        is_open: Whether text other than white space came after the last of them.
        size: Bytes of its text.
        hash: Of these.
    """

    documents: int = 0
    is_open: bool = False
    size: int = 0
    hash: xxhash.xxh3_128 = field(default_factory=xxhash.xxh3_128)


class PartWriter:
    """Sends the documents of a part to the shards of their splits.

    Args:
        sections: The sections.
        writers: One for each split, by its name.
        split: Which documents are for which.
        end_of_text_id: The id after each document.
        first_document: The number of the part's first document.
        stage: Called for each stage of the work.
    """

    def __init__(
        self,
        sections: Sequence[Section],
        writers: Mapping[str, ShardWriter],
        split: Split,
        end_of_text_id: int,
        *,
        first_document: int,
        stage: Stage = no_stage,
    ) -> None:
        self.bytes_read = 0
        self._sections = sections
        self._writers = writers
        self._split = split
        self._end_of_text_id = end_of_text_id
        self._first = self._document = first_document
        self._stage = stage
        self._current = _Current()
        self._records: list[SectionRecord] = []
        self._replaced = 0
        self._findings: Findings = {}

    def take(self, item: EncodedChunk | EndOfInput) -> None:
        """Write the next chunk.

        Raises:
            StorageError: If the disk is full.
        """
        if isinstance(item, EndOfInput):
            self._end_section()
            return
        current = self._current
        with self._stage("write token files", item.text_bytes):
            self._write(item.ids, item.ends, item.num_bytes, item.mask)
        current.is_open = item.is_open or (current.is_open and not len(item.ends))
        with self._stage("hash text", len(item.data)):
            current.hash.update(item.data)
        current.size += item.text_bytes
        self.bytes_read += item.text_bytes
        self._replaced += item.replaced
        add_findings(self._findings, item.findings)

    @property
    def is_complete(self) -> bool:
        """Whether all sections have been taken."""
        return len(self._records) == len(self._sections)

    def finish(self, key: str) -> PartRecord:
        """Complete the shards, which the record says were made from `key`."""
        with self._stage("save"):
            shards = {name: writer.finish() for name, writer in self._writers.items()}
        first = self._first if len(self._writers) > 1 else 0
        return PartRecord(key, first, self.bytes_read, self._replaced, self._records, shards, self._findings)

    def close(self) -> None:
        """Drop everything."""
        for writer in self._writers.values():
            writer.close()

    def abandon(self) -> None:
        """Drop the shards that are not complete; others may be another attempt's."""
        for writer in self._writers.values():
            writer.abandon()

    def _write(self, ids: Ids, ends: Ends, num_bytes: int | None, mask: Mask | None = None) -> None:
        """Write every document to the shards of its split, however it is divided into chunks."""
        self._current.documents += len(ends)
        if len(self._writers) == 1:
            [writer] = self._writers.values()
            writer.write(ids, ends, num_bytes, mask)
            return
        start = 0
        for end in ends.tolist():
            last = np.array([end - start])
            self._writer().write(ids[start:end], last, mask=None if mask is None else mask[start:end])
            self._document += 1
            start = end
        if start < len(ids):
            self._writer().write(ids[start:], ends[:0])

    def _writer(self) -> ShardWriter:
        """The writer of the document that is being read."""
        return self._writers[self._split.of(self._document)]

    def _end_section(self) -> None:
        section, current = self._sections[len(self._records)], self._current
        is_open = section.is_last and current.is_open
        if is_open:
            self._write(np.array([self._end_of_text_id], dtype=np.uint32), np.ones(1, np.int64), 0)
        digest = current.hash.hexdigest()
        self._records.append(SectionRecord(section.source, current.size, digest, current.documents, is_open))
        self._current = _Current()


def add_findings(findings: Findings, more: Findings) -> None:
    """Add what was found later."""
    for kind, (count, first) in more.items():
        before, found = findings.get(kind, (0, first))
        findings[kind] = (before + count, found)
