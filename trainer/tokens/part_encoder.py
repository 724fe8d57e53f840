"""Encoding parts of a text on this machine."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from shared.system.cpu_count import available_processors
from shared.system.stages import Stage, no_stage
from trainer.console.signals import StopRequest
from trainer.errors import InterruptedRunError
from trainer.tokens.job import EncodingJob
from trainer.tokens.output import Records
from trainer.tokens.part_record import PartRecord
from trainer.tokens.shard_writer import Target


@dataclass
class EncodingCallbacks:
    """What is called while text is encoded, and what may stop it.

    Attributes:
        stage: Called for each stage of the work, from any thread.
        progress: Called with the bytes of text read so far.
        stop: A signal that arrived.
    """

    stage: Stage = no_stage
    progress: Callable[[int], None] = lambda _: None
    stop: StopRequest = field(default_factory=StopRequest)


def encode_parts(
    job: EncodingJob, numbers: Sequence[int], records: Records, target: Target, callbacks: EncodingCallbacks
) -> Iterator[tuple[int, PartRecord]]:
    """Encode parts, one after the other, by all threads together.

    Args:
        job: What is encoded.
        numbers: Those of the parts, ascending.
        records: Of the parts that are finished. What this yields must be added before the next is asked for.
        target: Where the shards go.
        callbacks: What to call meanwhile, and the signal that stops it.

    Raises:
        CorpusError: An input cannot be read.
        StorageError: A shard cannot be written.
        InterruptedRunError: A signal stopped it.
    """
    threads = job.settings.threads or available_processors()
    done = sum(record.bytes_read for record in records.values())
    first_document = counted = 0
    with closing(job.chunks(numbers, threads, callbacks.stage)) as chunks:
        for number in numbers:
            # Where an earlier part is still missing, this one will be encoded again.
            first_document += sum(records[each].documents for each in range(counted, number) if each in records)
            counted = number
            writer = job.writer(number, target, first_document, callbacks.stage)
            try:
                for item in chunks:
                    _check(callbacks, done + writer.bytes_read)
                    writer.take(item)
                    callbacks.progress(done + writer.bytes_read)
                    if writer.is_complete:
                        break
                record = writer.finish(job.key(number))
            except BaseException:
                writer.close()
                raise
            done += record.bytes_read
            yield number, record


def _check(callbacks: EncodingCallbacks, done: int) -> None:
    if callbacks.stop.signal_number is not None:
        raise InterruptedRunError(f"stopped after {done:,} bytes of text", callbacks.stop.signal_number)
