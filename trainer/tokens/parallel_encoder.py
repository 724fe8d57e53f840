"""Encoding inputs in chunks, on all processors; the ids come out in order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from shared.bpe import SourceError, Tokenizer
from shared.bpe.training import CHUNK_BYTES, Bytes, Errors, Source, Specials, escaped_characters, read_error
from shared.system.stages import Stage, no_stage, staged
from shared.system.thread_pool import Task, WorkPool
from trainer.text.batches import TEXT_BYTES, batches
from trainer.text.memory import EncodingMemory
from trainer.text.sources import Input, Records
from trainer.text.utf8 import CorpusError, valid_record, valid_utf8
from trainer.tokens.encoded_chunk import EncodedChunk, EndOfInput, ends_in
from trainer.tokens.token_file import Ids, dtype_for

# Text of records that a thread takes at once.
_RECORDS_BYTES = 3 << 18


class Job(NamedTuple):
    """Makes one chunk, and the size of its text in bytes."""

    run: Callable[[], EncodedChunk | EndOfInput]
    size: int = 0


@dataclass(frozen=True)
class ParallelEncoder:
    """Encodes texts and records.

    Attributes:
        tokenizer: The tokenizer.
        separator: A special token that stands between documents of text; None if nothing in it is special.
        end_of_text_id: The id after each record.
        errors: Whether bytes that are not UTF-8 are an error or become U+FFFD.
        memory: Limits of chunks and records.
        threads: How many threads encode.
        stage: Called for each stage of the work, from any thread.
    """

    tokenizer: Tokenizer
    separator: str | None
    end_of_text_id: int
    errors: Errors
    memory: EncodingMemory
    threads: int
    stage: Stage = no_stage

    def encode(self, inputs: Sequence[Input]) -> Generator[EncodedChunk | EndOfInput, None, None]:
        """All chunks of the inputs, in order.

        Raises:
            CorpusError: If an input cannot be read, is not UTF-8, or has a part that does not fit into the memory;
                chunks before it have been yielded.
        """
        # The encoder is built once, and not by every thread.
        self.tokenizer.warm_up()
        # One chunk that is as long as it may be, beside others of the usual size.
        max_bytes = self.memory.part + 2 * self.threads * CHUNK_BYTES
        yield from in_order(self._jobs(inputs), self.threads, max_bytes, self.stage)

    def _jobs(self, inputs: Sequence[Input]) -> Iterator[Job]:
        for content in (each.content for each in inputs):
            try:
                yield from self._record_jobs(content) if isinstance(content, Records) else self._text_jobs(content)
            except SourceError as error:
                raise CorpusError(str(error)) from None
            except OSError as error:
                raise CorpusError(str(read_error(content.name, error))) from None
            yield Job(EndOfInput)

    def _text_jobs(self, text: Source) -> Iterator[Job]:
        if self.tokenizer.can_split_bytes:
            spellings = [] if self.separator is None else [self.separator.encode()]
            chunks = text.chunks(Specials(spellings), 0, self.memory.part)
            for chunk in staged(chunks, self.stage, "read"):
                yield Job(partial(self._encode_text, text.name, chunk.offset, chunk.read, False), chunk.size)
            return
        allowed = () if self.separator is None else (self.separator,)
        chunker = self.tokenizer.chunker(allowed_special=allowed, separator=self.separator)
        characters = escaped_characters(text, 0, self.memory.part)
        offset = 0
        parts = chunker.parts(characters, name=text.name, longest=self.memory.part)
        for part, continues in staged(parts, self.stage, "read"):
            data = part.encode(errors="surrogateescape")
            yield Job(partial(self._encode_text, text.name, offset, partial(bytes, data), continues), len(data))
            offset += len(data)

    def _encode_text(self, name: str, offset: int, read: Callable[[], bytes | Bytes], continues: bool) -> EncodedChunk:
        with self.stage("read"):
            raw = bytes(read())
        with self.stage("check UTF-8", len(raw)):
            data, replaced = valid_utf8(raw, name, offset, self.errors)
        with self.stage("encode", len(data)):
            dtype = dtype_for(self.tokenizer.vocab_size)
            ids = self.tokenizer.encode_documents(data, self.separator, dtype, continues=continues)
            ends = ends_in(ids, self.end_of_text_id)
        separator = (self.separator or "").encode()
        num_bytes = len(data) - len(separator) * len(ends) if self.tokenizer.can_split_bytes else None
        return EncodedChunk(ids, ends, _is_open(raw, separator), raw, num_bytes, replaced)

    def _record_jobs(self, records: Records) -> Iterator[Job]:
        rows = ((text, "") for text in staged(records.read(self.memory.record), self.stage, "read"))
        for first, batch, size in record_batches(records.name, rows, self.memory):
            yield Job(partial(self._encode_records, records.name, first, [text for text, _ in batch]), size)

    def _encode_records(self, name: str, first: int, texts: list[str]) -> EncodedChunk:
        replaced = 0
        for index, text in enumerate(texts):
            texts[index], count = valid_record(text, name, first + index, self.errors)
            replaced += count
        parts: list[Ids] = []
        end_of_text = np.array([self.end_of_text_id], dtype=np.uint32)
        data = "".join(texts).encode()
        with self.stage("encode", len(data)):
            for ids in self.tokenizer.encode_batch_to_numpy(texts, max_threads=1):
                parts += (ids, end_of_text)
        ids = np.concatenate(parts).astype(dtype_for(self.tokenizer.vocab_size))
        num_bytes = None if self.tokenizer.vocabulary.alters_text else len(data)
        return EncodedChunk(ids, ends_in(ids, self.end_of_text_id), False, data, num_bytes, replaced)


def _is_open(text: bytes, separator: bytes) -> bool:
    """Whether anything but white space follows the last separator, or the beginning."""
    end = len(text.rstrip())  # of what is no white space; a separator may end behind it
    return end > 0 and (not separator or text.rfind(separator, max(0, end - len(separator))) < 0)


def record_batches(
    name: str, rows: Iterable[tuple[str, str]], memory: EncodingMemory
) -> Iterator[tuple[int, list[tuple[str, str]], int]]:
    """Records, as many together as a thread takes at once.

    Args:
        name: Of the file.
        rows: The text of each, and something that stays with it.
        memory: Limits their size.

    Returns:
        For each batch the number of its first record, from 1, the records, and their size.

    Raises:
        CorpusError: If a record does not fit into the memory.
    """

    def checked() -> Iterator[tuple[str, str]]:
        for number, row in enumerate(rows, start=1):
            memory.check_record(name, number, row[0])
            yield row

    first = 1
    for batch in batches(checked(), _RECORDS_BYTES, itemgetter(0)):
        yield first, batch, sum(len(text) + TEXT_BYTES for text, _ in batch)
        first += len(batch)


def in_order(jobs: Iterable[Job], threads: int, max_bytes: int, stage: Stage) -> Iterator[EncodedChunk | EndOfInput]:
    """The results of jobs, in their order; only a few are started before their turn, or one that is large."""
    waiting: deque[tuple[Task[EncodedChunk | EndOfInput], int]] = deque()
    size = 0
    with WorkPool(threads) as pool:

        def result(task: Task[EncodedChunk | EndOfInput]) -> EncodedChunk | EndOfInput:
            with stage("wait for other threads"):
                return pool.result(task)

        for job in jobs:
            while waiting and (len(waiting) > 2 * threads or size + job.size > max_bytes):
                task, done = waiting.popleft()
                size -= done
                yield result(task)
            waiting.append((pool.submit(job.run), job.size))
            size += job.size
        while waiting:
            yield result(waiting.popleft()[0])
