"""Text as documents."""

from collections.abc import Iterable, Iterator

from shared.bpe import SourceError, TooLongError
from shared.bpe.training import Errors, Source, Specials, read_error
from trainer.text.memory import EncodingMemory
from trainer.text.sources import Input, Records
from trainer.text.utf8 import CorpusError, has_text, valid_record, valid_utf8


def text_blocks(text: Source, separator: str | None, errors: Errors, longest: int) -> Iterator[str]:
    """A text in blocks of about a megabyte, cut neither within a separator nor within a pretoken of a named pattern.

    Raises:
        CorpusError: If it cannot be read, is not UTF-8 and must be, or a block of it has more than `longest` bytes.
    """
    specials = Specials([] if separator is None else [separator.encode()])
    try:
        for chunk in text.chunks(specials, 0, longest):
            yield valid_utf8(chunk.read().tobytes(), text.name, chunk.offset, errors)[0].decode()
    except SourceError as error:
        raise CorpusError(str(error)) from None
    except OSError as error:
        raise CorpusError(str(read_error(text.name, error))) from None


def up_to_separators(blocks: Iterable[str], separator: str | None, name: str, longest: int) -> Iterator[str]:
    """Blocks of a text regrouped so that each except the last ends with a separator; a single one where that is None.

    Raises:
        CorpusError: If more than `longest` characters are between two separators.
    """
    gathered: list[str] = []
    size = 0
    for text in blocks:
        before, found, after = ("", "", text) if separator is None else text.rpartition(separator)
        if found:
            yield "".join([*gathered, before, found])
            gathered, size = [], 0
        gathered.append(after)
        size += len(after)
        if size > longest:
            raise CorpusError(str(TooLongError(name, size, "the end of a document")))
    yield "".join(gathered)


def labeled_texts(
    records: Records, label: str | None, errors: Errors, memory: EncodingMemory
) -> Iterator[tuple[str, str]]:
    """The texts of records, each with the value of another field (empty if none is named).

    Raises:
        CorpusError: If they cannot be read, or one does not fit into the memory, or contains a lone surrogate, as JSON
            may spell it, and must not.
    """
    for number, (text, value) in enumerate(records.rows(label, memory.record), start=1):
        memory.check_record(records.name, number, text)
        yield valid_record(text, records.name, number, errors)[0], value


def whole_documents(
    given: Input, separator: str | None, errors: Errors, max_bytes: int, memory: EncodingMemory
) -> Iterator[str]:
    """The documents of a text or of records, up to about `max_bytes` bytes.

    After the last separator there is none, unless text other than white space follows.

    Raises:
        CorpusError: As above.
    """
    if isinstance(given.content, Records):
        yield from _up_to((text for text, _ in labeled_texts(given.content, None, errors, memory)), max_bytes)
        return
    text = given.content
    blocks = _up_to(text_blocks(text, separator, errors, memory.part), max_bytes)
    for block in up_to_separators(blocks, separator, text.name, memory.part):
        *documents, last = [block] if separator is None else block.split(separator)
        yield from documents
        if has_text(last.encode()):
            yield last


def _up_to(texts: Iterable[str], max_bytes: int) -> Iterator[str]:
    for text in texts:
        data = text.encode()
        if len(data) >= max_bytes:
            yield data[:max_bytes].decode(errors="ignore")
            return
        yield text
        max_bytes -= len(data)
