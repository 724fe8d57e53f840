"""Inputs in pieces that are encoded one by one on all processors, and come out in order."""

import codecs
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from shared.bpe import Tokenizer
from shared.bpe.corpus import Source, SourceError, read_error
from shared.bpe.counting import Errors, replace_invalid
from shared.bpe.kernels.utf8 import first_invalid
from shared.bpe.word_counts import Specials
from shared.work_pool import in_order
from trainer.corpus import CorpusError, invalid_utf8
from trainer.sources import Input, Records
from trainer.tokenfile import Ids, dtype_for

# Text that a thread takes at once.
_CHUNK_BYTES = 3 << 18


class Unit(NamedTuple):
    """A part of an input, encoded.

    Attributes:
        source: The number of the input.
        end: Where in it the part ends: in bytes of text, or in records.
        data: Its bytes as they were read; none of records.
        text_bytes: Of the part, for progress.
        ids: An end-of-text id wherever a document ends.
        num_bytes: Bytes of text that the ids stand for; None if only the ids tell.
        replaced: Characters put in place of bytes that are not UTF-8.
    """

    source: int
    end: int
    data: bytes
    text_bytes: int
    ids: Ids
    num_bytes: int | None
    replaced: int


class EndOfSource(NamedTuple):
    """Comes after the last part of each input."""

    source: int


@dataclass(frozen=True)
class UnitEncoder:
    """How text becomes ids.

    Attributes:
        tokenizer: The tokenizer.
        separator: A special token that stands between documents of text; None if nothing in it is special.
        end_of_text_id: The id after each record.
        errors: Whether bytes that are not UTF-8 are an error or become U+FFFD.
    """

    tokenizer: Tokenizer
    separator: str | None
    end_of_text_id: int
    errors: Errors

    def units(
        self, inputs: Sequence[Input], threads: int, first: int = 0, begin: int = 0
    ) -> Generator[Unit | EndOfSource, None, None]:
        """All parts from place `begin` of input number `first` on, encoded by so many threads.

        Raises:
            CorpusError: If an input cannot be read, or is not UTF-8; parts before it have come out.
        """
        # The encoder is made once, and not by every thread.
        self.tokenizer.warm_up()
        yield from in_order(self._tasks(inputs, first, begin), threads)

    def _tasks(self, inputs: Sequence[Input], first: int, begin: int) -> Iterator[Callable[[], Unit | EndOfSource]]:
        for number in range(first, len(inputs)):
            content = inputs[number].content
            start = begin if number == first else 0
            try:
                if isinstance(content, Records):
                    yield from self._record_tasks(number, content, start)
                else:
                    for end, read in self._parts(content, start):
                        yield partial(self._encode_text, number, content.name, end, read)
            except SourceError as error:
                raise CorpusError(str(error)) from None
            except OSError as error:
                raise CorpusError(str(read_error(content.name, error))) from None
            yield partial(EndOfSource, number)

    def _parts(self, source: Source, begin: int) -> Iterator[tuple[int, Callable[[], bytes]]]:
        """Where each part of a text ends, and what reads it."""
        if self.tokenizer.is_cut_by_bytes:
            spellings = [] if self.separator is None else [self.separator.encode()]
            for chunk in source.chunks(Specials(spellings), begin):
                yield chunk.end, lambda read=chunk.read: read().tobytes()  # type: ignore[misc]
            return
        allowed = () if self.separator is None else (self.separator,)
        for block in self.tokenizer.chunker(allowed_special=allowed).blocks(_characters(source, begin)):
            data = block.encode(errors="surrogateescape")
            begin += len(data)
            yield begin, lambda data=data: data  # type: ignore[misc]

    def _encode_text(self, source: int, name: str, end: int, read: Callable[[], bytes]) -> Unit:
        raw = data = read()
        replaced = 0
        if first_invalid(np.frombuffer(raw, dtype=np.uint8), 0, len(raw)) >= 0:
            if self.errors == "strict":
                _refuse(name, end - len(raw), raw)
            data, replaced = replace_invalid(raw)
        ids = self.tokenizer.encode_documents(data, self.separator, dtype_for(self.tokenizer.vocab_size))
        num_bytes = None
        if self.tokenizer.is_cut_by_bytes:
            separators = 0 if self.separator is None else int(np.count_nonzero(ids == self.end_of_text_id))
            num_bytes = len(data) - separators * len((self.separator or "").encode())
        return Unit(source, end, raw, len(raw), ids, num_bytes, replaced)

    def _record_tasks(self, number: int, records: Records, begin: int) -> Iterator[Callable[[], Unit]]:
        texts: list[str] = []
        size, index = 0, -1
        for index, text in enumerate(records.read()):
            if index < begin:
                continue
            texts.append(text)
            size += len(text)
            if size >= _CHUNK_BYTES:
                yield partial(self._encode_records, number, records.name, index + 1, texts)
                texts, size = [], 0
        if texts:
            yield partial(self._encode_records, number, records.name, index + 1, texts)

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
        is_exact = not self.tokenizer.vocabulary.nfc
        return Unit(source, end, b"", num_bytes, ids, num_bytes if is_exact else None, replaced)


def _characters(source: Source, begin: int) -> Iterator[str]:
    """Text whose wrong bytes are surrogates, so that encoding it gives all bytes back."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    for chunk in source.chunks(Specials(), begin):
        yield decoder.decode(chunk.read().tobytes())
    yield decoder.decode(b"", final=True)


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
