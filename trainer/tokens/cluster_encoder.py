"""Encoding parts of a text on a Ray cluster: `encode_parts` of any number of machines."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from shared.bpe import SourceError
from shared.bpe.training import Specials, read_error
from trainer.cluster.ray_cluster import RayCluster, ray_cluster
from trainer.cluster.task_output import TaskOutput
from trainer.errors import InterruptedRunError, UsageError
from trainer.text.memory import EncodingMemory
from trainer.text.sections import open_section
from trainer.text.sources import Records as FileOfRecords
from trainer.text.utf8 import CorpusError, has_text
from trainer.tokens.job import EncodingJob
from trainer.tokens.output import Records
from trainer.tokens.part_encoder import EncodingCallbacks
from trainer.tokens.part_record import PartRecord
from trainer.tokens.shard_writer import Target


@dataclass(frozen=True)
class _Common:
    """What all tasks share.

    Attributes:
        job: What is encoded.
        output: Where the shards go.
    """

    job: EncodingJob
    output: TaskOutput


def encode_parts_on_cluster(
    job: EncodingJob, numbers: Sequence[int], records: Records, target: Target, callbacks: EncodingCallbacks
) -> Iterator[tuple[int, PartRecord]]:
    """As `encode_parts`, by a task for each part, in the order in which they are ready.

    Raises:
        UsageError: An input can be read only once.
        TrainerError: As in `RayCluster.run`, and as in `encode_parts`.
    """
    assert job.settings.ray is not None
    if not job.is_repeatable:
        raise UsageError(
            "--ray reads text on all nodes, and standard input and pipes are streams of this one: write them to files"
        )
    common = _Common(job, TaskOutput.of(target.folder, target.scratch))
    done = sum(record.bytes_read for record in records.values())
    try:
        with ray_cluster(job.settings.ray, callbacks.stop) as cluster:
            firsts = _first_documents(cluster, common, numbers, records)
            for index, record in cluster.run(_encode, common, [(number, firsts[number]) for number in numbers]):
                for shard in record.all_shards:
                    common.output.check_visible(shard.file)
                done += record.bytes_read
                callbacks.progress(done)
                yield numbers[index], record
    except InterruptedRunError as error:
        raise InterruptedRunError(f"stopped after {done:,} bytes of text", error.signal_number) from None


def _first_documents(cluster: RayCluster, common: _Common, numbers: Sequence[int], records: Records) -> dict[int, int]:
    """The number of the first document of each part, which only those that are divided into splits depend on."""
    job = common.job
    if len(job.settings.splits) == 1 or job.template is not None:  # of conversations it takes encoding to know
        return dict.fromkeys(numbers, 0)
    counts = {number: record.documents for number, record in records.items()}
    counts |= {numbers[index]: count for index, count in cluster.run(_count_documents, common, numbers)}
    firsts, first = {}, 0
    for number in range(len(job.parts)):
        firsts[number] = first
        first += counts[number]
    return firsts


def _encode(common: _Common, item: tuple[int, int]) -> PartRecord:
    """Encode a part, whose number and whose first document's number are given."""
    job, (number, first_document) = common.job, item
    with common.output.attempt() as scratch:
        writer = job.writer(number, job.target(common.output.folder, scratch), first_document)
        try:
            with closing(job.chunks([number], threads=1)) as chunks:
                for chunk in chunks:
                    writer.take(chunk)
            return writer.finish(job.key(number))
        except BaseException:
            writer.abandon()  # another attempt, which was thought to be lost, may have completed the part meanwhile
            raise


def _count_documents(common: _Common, number: int) -> int:
    """The documents of a part, as `PartRecord.documents` counts them, without encoding it."""
    job = common.job
    memory = EncodingMemory(job.settings.memory_bytes, 1)
    separator = (job.settings.document_separator or "").encode()
    documents = 0
    for section in job.parts[number]:
        content = open_section(section, job.inputs[section.source]).content
        try:
            if isinstance(content, FileOfRecords):
                documents += sum(1 for _ in content.read(memory.record))
                continue
            is_open = False
            for chunk in content.chunks(Specials([separator] if separator else []), 0, memory.part):
                data = chunk.read().tobytes()
                found = data.count(separator) if separator else 0
                documents += found
                is_open = has_text(data[data.rfind(separator) + len(separator) :] if found else data) or (
                    is_open and not found
                )
            documents += section.is_last and is_open
        except SourceError as error:
            raise CorpusError(str(error)) from None
        except OSError as error:
            raise CorpusError(str(read_error(content.name, error))) from None
    return documents
