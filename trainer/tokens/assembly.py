"""The manifests of what was encoded, from the records of its parts."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.errors import TrainerError
from trainer.storage.remote import display_path
from trainer.text.sizes import size_of
from trainer.text.sources import Records
from trainer.tokens.encoded_chunk import Findings
from trainer.tokens.job import EncodingJob
from trainer.tokens.manifest import (
    HASH,
    VERSION,
    VERSION_WITH_MASK,
    Manifest,
    Shard,
    Source,
    dtype_for,
    hash_of_hashes,
)
from trainer.tokens.part_record import PartRecord, SectionRecord


def assemble(job: EncodingJob, records: Sequence[PartRecord]) -> dict[str, Manifest]:
    """The manifests by the names of their splits; they may be empty."""
    sources = _sources(job, [section for record in records for section in record.sections])
    parts = tuple(record.without_shards() for record in records)
    return {
        name: manifest_of(job, [shard for record in records for shard in record.shards[name]], sources, parts)
        for name in job.settings.splits
    }


def manifest_of(
    job: EncodingJob, shards: Sequence[Shard], sources: Sequence[Source], parts: Sequence[Mapping[str, Any]] = ()
) -> Manifest:
    """The manifest of some shards."""
    tokenizer = job.tokenizer
    return Manifest(
        version=VERSION if job.template is None else VERSION_WITH_MASK,
        dtype=dtype_for(tokenizer.vocab_size).name,
        count=sum(shard.count for shard in shards),
        documents=sum(shard.documents for shard in shards),
        vocab_size=tokenizer.vocab_size,
        fingerprint=tokenizer.fingerprint,
        end_of_text_id=job.end_of_text_id,
        bytes=sum(shard.bytes for shard in shards),
        hash=HASH,
        shards=tuple(shards),
        sources=tuple(sources),
        chat_template=None if job.template is None else job.template.sha256,
        parts=tuple(dict(part) for part in parts),
    )


def check_not_empty(manifests: Mapping[str, Manifest], findings: Findings) -> None:
    """Raise a TrainerError if there is no document, or none in one of the splits."""
    if not any(manifest.documents for manifest in manifests.values()):
        if findings:
            found = "; ".join(f"{count:,}: {kind} ({first})" for kind, (count, first) in findings.items())
            raise TrainerError(f"no conversation can be trained on: {found}")
        raise TrainerError("the files contain no text: there is nothing to encode")
    for name, manifest in manifests.items():
        if not manifest.documents:
            raise TrainerError(
                f"the text is too short to hold out a part of it: the split {name!r} would be empty; give more text, "
                "or encode a validation text of its own with --split val instead of --val-fraction"
            )


def _sources(job: EncodingJob, sections: Sequence[SectionRecord]) -> list[Source]:
    own: list[list[SectionRecord]] = [[] for _ in job.inputs]
    for section in sections:
        own[section.source].append(section)
    sources = []
    for given, found in zip(job.inputs, own, strict=True):
        hashes = [section.hash for section in found]
        documents = sum(section.documents for section in found)
        # An empty file ends no document, as one that ends with a separator does. Records end by themselves.
        ends_with_separator = not found[-1].is_open and documents > 0 and not isinstance(given.content, Records)
        sources.append(
            Source(
                display_path(given.path),
                sum(section.bytes for section in found) if given.is_plain else size_of(given.path),
                hashes[0] if len(hashes) == 1 else hash_of_hashes(hashes),
                documents,
                ends_with_separator,
            )
        )
    return sources
