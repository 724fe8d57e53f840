"""Inputs in pieces that are encoded one by one on all processors, and come out in order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from shared.bpe import SourceError, Tokenizer
from shared.bpe.training import (
    CHUNK_BYTES,
    Errors,
    Source,
    Specials,
    escaped_characters,
    first_invalid,
    read_error,
    replace_invalid,
)
from shared.system.thread_pool import Task, WorkPool
from trainer.text.memory import EncodingMemory
from trainer.text.sources import TEXT_BYTES, Input, Records
from trainer.text.utf8 import CorpusError, holds_text, invalid_utf8
from trainer.tokens.token_file import Ids, dtype_for

# Text of records that a thread takes at once.
_CHUNK_BYTES = 3 << 18


class Unit(NamedTuple):
    """A part of an input, encoded.

    Attributes:
        source: The number of the input.
        end: Where in it the part ends: in bytes of text, or in records.
        data: Its bytes as they were read; none of records.
        text_bytes: Of the part, for progress.
        ids: An end-of-text id wherever a document ends.
        is_open: Whether anything but white space follows the last of these, or the beginning.
        num_bytes: Bytes of text that the ids stand for; None if only the ids tell.
        replaced: Characters put in place of bytes that are not UTF-8.
    """

    source: int
    end: int
    data: bytes
    text_bytes: int
    ids: Ids
    is_open: bool
    num_bytes: int | None
    replaced: int


class EndOfSource(NamedTuple):
    """Comes after the last part of each input."""

    source: int


class _Part(NamedTuple):
    """What gives a part, and the bytes that it has."""

    run: Callable[[], Unit | EndOfSource]
    size: int = 0


@dataclass(frozen=True)
class UnitEncoder:
    """How text becomes ids.

    Attributes:
        tokenizer: The tokenizer.
        separator: A special token that stands between documents of text; None if nothing in it is special.
        end_of_text_id: The id after each record.
        errors: Whether bytes that are not UTF-8 are an error or become U+FFFD.
        memory: What parts may take.
    """

    tokenizer: Tokenizer
    separator: str | None
    end_of_text_id: int
    errors: Errors
    memory: EncodingMemory

    def units(
        self, inputs: Sequence[Input], threads: int, first: int = 0, begin: int = 0
    ) -> Generator[Unit | EndOfSource, None, None]:
        """All parts from place `begin` of input number `first` on, encoded by so many threads.

        Raises:
            CorpusError: If an input cannot be read, is not UTF-8, or has a part that does not fit into the memory;
                parts before it have come out.
        """
        # The encoder is made once, and not by every thread.
        self.tokenizer.warm_up()
        # One part that is as long as it may be, beside others as they usually are.
        max_bytes = self.memory.part + 2 * threads * CHUNK_BYTES
        yield from _in_order(self._tasks(inputs, first, begin), threads, max_bytes)

    def _tasks(self, inputs: Sequence[Input], first: int, begin: int) -> Iterator[_Part]:
        for number in range(first, len(inputs)):
            content = inputs[number].content
            start = begin if number == first else 0
            try:
                if isinstance(content, Records):
                    yield from self._record_tasks(number, content, start)
                else:
                    for end, size, read in self._parts(content, start):
                        yield _Part(partial(self._encode_text, number, content.name, end, read), size)
            except SourceError as error:
                raise CorpusError(str(error)) from None
            except OSError as error:
                raise CorpusError(str(read_error(content.name, error))) from None
            yield _Part(partial(EndOfSource, number))

    def _parts(self, source: Source, begin: int) -> Iterator[tuple[int, int, Callable[[], bytes]]]:
        """Where each part of a text ends, its bytes, and what reads it."""
        if self.tokenizer.can_split_bytes:
            spellings = [] if self.separator is None else [self.separator.encode()]
            for chunk in source.chunks(Specials(spellings), begin, self.memory.part):
                yield chunk.end, chunk.size, lambda read=chunk.read: read().tobytes()  # type: ignore[misc]
            return
        allowed = () if self.separator is None else (self.separator,)
        chunker = self.tokenizer.chunker(allowed_special=allowed)
        text = escaped_characters(source, begin, self.memory.part)
        for block in chunker.chunks(text, name=source.name, longest=self.memory.part):
            data = block.encode(errors="surrogateescape")
            begin += len(data)
            yield begin, len(data), lambda data=data: data  # type: ignore[misc]

    def _encode_text(self, source: int, name: str, end: int, read: Callable[[], bytes]) -> Unit:
        raw = data = read()
        replaced = 0
        if first_invalid(np.frombuffer(raw, dtype=np.uint8), 0, len(raw)) >= 0:
            if self.errors == "strict":
                _refuse(name, end - len(raw), raw)
            data, replaced = replace_invalid(raw)
        ids = self.tokenizer.encode_documents(data, self.separator, dtype_for(self.tokenizer.vocab_size))
        num_bytes = None
        if self.tokenizer.can_split_bytes:
            separators = 0 if self.separator is None else int(np.count_nonzero(ids == self.end_of_text_id))
            num_bytes = len(data) - separators * len((self.separator or "").encode())
        separator = (self.separator or "").encode()
        place = raw.rfind(separator) if separator else -1
        is_open = holds_text(raw[place + len(separator) :] if place >= 0 else raw)
        return Unit(source, end, raw, len(raw), ids, is_open, num_bytes, replaced)

    def _record_tasks(self, number: int, records: Records, begin: int) -> Iterator[_Part]:
        texts: list[str] = []
        size, index = 0, -1

        def task() -> _Part:
            return _Part(partial(self._encode_records, number, records.name, index + 1, texts), size)

        for index, text in enumerate(records.read(self.memory.record)):
            if index < begin:
                continue
            self.memory.check_record(records.name, index + 1, text)
            texts.append(text)
            size += len(text) + TEXT_BYTES
            if size >= _CHUNK_BYTES:
                yield task()
                texts, size = [], 0
        if texts:
            yield task()

    def _encode_records(self, source: int, name: str, end: int, texts: list[str]) -> Unit:
        replaced = 0
        for index, text in enumerate(texts):
            # Text of a record can be wrong in one way only: JSON spells lone surrogates.
            if _has_surrogates(text):
                if self.errors == "strict":
                    raise CorpusError(
                        f"{name}, record {end - len(texts) + index + 1}, holds a lone surrogate, which is no text; "
                        "allow it (--errors replace)"
                    )
                data, count = replace_invalid(text.encode(errors="surrogatepass"))
                texts[index] = data.decode()
                replaced += count
        parts: list[Ids] = []
        end_of_text = np.array([self.end_of_text_id], dtype=np.uint32)
        for ids in self.tokenizer.encode_batch_to_numpy(texts, max_threads=1):
            parts += (ids, end_of_text)
        ids = np.concatenate(parts).astype(dtype_for(self.tokenizer.vocab_size))
        num_bytes = sum(len(text.encode()) for text in texts)
        known = None if self.tokenizer.vocabulary.alters_text else num_bytes
        return Unit(source, end, b"", num_bytes, ids, False, known, replaced)


def _in_order(parts: Iterable[_Part], threads: int, max_bytes: int) -> Iterator[Unit | EndOfSource]:
    """What the parts give, in their order; only a few of them are begun before their turn, or one that is large."""
    waiting: deque[tuple[Task[Unit | EndOfSource], int]] = deque()
    size = 0
    with WorkPool(threads) as pool:
        for part in parts:
            while waiting and (len(waiting) > 2 * threads or size + part.size > max_bytes):
                task, done = waiting.popleft()
                size -= done
                yield pool.result(task)
            waiting.append((pool.submit(part.run), part.size))
            size += part.size
        while waiting:
            yield pool.result(waiting.popleft()[0])


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _refuse(name: str, offset: int, data: bytes) -> None:
    """Raise the error for bytes of an input that are not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise invalid_utf8(name, offset + error.start, error) from None
