"""What encoding a part of the text gave: its shards, and what was found in the text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from trainer.tokens.encoded_chunk import Findings
from trainer.tokens.manifest import Shard


@dataclass(frozen=True)
class SectionRecord:
    """What a section of an input had.

    Attributes:
        source: Number of the input.
        bytes: Bytes of its text.
        hash: Of these.
        documents: Documents that ended in it.
        is_open: Whether text other than white space came after the last of them, at the end of the input.
    """

    source: int
    bytes: int
    hash: str
    documents: int
    is_open: bool

    def __str__(self) -> str:
        """One line of a manifest, which may list a million files."""
        return f"{self.source} {self.bytes} {self.hash} {self.documents} {int(self.is_open)}"

    @classmethod
    def parse(cls, line: str) -> "SectionRecord":
        """The same again; raises a ValueError if it is damaged."""
        source, size, digest, documents, is_open = line.split()
        return cls(int(source), int(size), digest, int(documents), is_open == "1")


@dataclass(frozen=True)
class PartRecord:
    """What became of a part.

    Attributes:
        key: Of what it was made from; see `EncodingJob.key`.
        first_document: The number of its first document, which decides what is for validation; 0 where nothing is.
        bytes_read: Bytes of its text.
        replaced: Characters U+FFFD put in place of bytes that are not UTF-8.
        sections: In order.
        shards: By the name of the split.
        findings: Of conversations.
    """

    key: str
    first_document: int
    bytes_read: int
    replaced: int
    sections: Sequence[SectionRecord]
    shards: Mapping[str, Sequence[Shard]] = field(default_factory=dict)
    findings: Findings = field(default_factory=dict)

    @property
    def documents(self) -> int:
        """Documents that ended in it."""
        return sum(section.documents for section in self.sections)

    @property
    def all_shards(self) -> list[Shard]:
        """Those of all splits."""
        return [shard for own in self.shards.values() for shard in own]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.without_shards(), "shards": {n: [s.to_dict() for s in own] for n, own in self.shards.items()}}

    def without_shards(self) -> dict[str, Any]:
        """As a manifest has it, which lists the shards itself."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "shards"}
        return {**own, "sections": [str(section) for section in self.sections]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], shards: Mapping[str, Sequence[Shard]] | None = None) -> "PartRecord":
        """The same record again.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: It is damaged.
        """
        if shards is None:
            shards = {name: [Shard(**each) for each in own] for name, own in content["shards"].items()}
        sections = [SectionRecord.parse(each) for each in content["sections"]]
        findings = {kind: (count, first) for kind, (count, first) in content["findings"].items()}
        return cls(**{**content, "sections": sections, "shards": shards, "findings": findings})
