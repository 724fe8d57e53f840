"""Text as documents, checked for being UTF-8 on the way."""

from collections.abc import Iterable, Iterator

from shared.bpe import SourceError, TooLongError
from shared.bpe.training import Errors, Source, Specials, read_error, replace_invalid
from trainer.text.memory import EncodingMemory
from trainer.text.sources import Input, Records
from trainer.text.utf8 import CorpusError, holds_text, invalid_utf8


def characters(text: Source, separator: str | None, errors: Errors, longest: int) -> Iterator[str]:
    """A text in pieces of about a megabyte, cut where neither a separator nor a token of a named pattern is.

    Raises:
        CorpusError: If it cannot be read, is not UTF-8 and must be, or a piece of it has more than `longest` bytes.
    """
    specials = Specials([] if separator is None else [separator.encode()])
    try:
        for chunk in text.chunks(specials, 0, longest):
            data = chunk.read().tobytes()
            try:
                yield data.decode()
            except UnicodeDecodeError as error:
                if errors == "strict":
                    raise invalid_utf8(text.name, chunk.offset + error.start, error) from None
                yield replace_invalid(data)[0].decode()
    except SourceError as error:
        raise CorpusError(str(error)) from None
    except OSError as error:
        raise CorpusError(str(read_error(text.name, error))) from None


def up_to_separators(pieces: Iterable[str], separator: str | None, name: str, longest: int) -> Iterator[str]:
    """Pieces of a text regrouped so that each but the last ends behind a separator; one piece where that is None.

    Raises:
        CorpusError: If more than `longest` characters are between two separators.
    """
    gathered: list[str] = []
    size = 0
    for text in pieces:
        before, found, after = ("", "", text) if separator is None else text.rpartition(separator)
        if found:
            yield "".join([*gathered, before, found])
            gathered, size = [], 0
        gathered.append(after)
        size += len(after)
        if size > longest:
            raise CorpusError(str(TooLongError(name, size, "the end of a document")))
    yield "".join(gathered)


def labelled_texts(
    records: Records, label: str | None, errors: Errors, memory: EncodingMemory
) -> Iterator[tuple[str, str]]:
    """The texts of records, each with the value of another field (empty if none is named).

    Raises:
        CorpusError: If they cannot be read, or one does not fit into the memory, or holds a lone surrogate, as JSON may
            spell it, and must not.
    """
    for number, (text, value) in enumerate(records.rows(label, memory.record), start=1):
        memory.check_record(records.name, number, text)
        try:
            text.encode()
        except UnicodeEncodeError:
            if errors == "strict":
                raise CorpusError(
                    f"{records.name}, record {number}, holds a lone surrogate, which is no text; allow it "
                    "(--errors replace)"
                ) from None
            yield replace_invalid(text.encode(errors="surrogatepass"))[0].decode(), value
        else:
            yield text, value


def whole_documents(
    given: Input, separator: str | None, errors: Errors, max_bytes: int, memory: EncodingMemory
) -> Iterator[str]:
    """The documents of a text or of records, up to about so many bytes.

    Behind the last separator there is none, unless text other than white space follows.

    Raises:
        CorpusError: As above.
    """
    if isinstance(given.content, Records):
        yield from _up_to((text for text, _ in labelled_texts(given.content, None, errors, memory)), max_bytes)
        return
    text = given.content
    pieces = _up_to(characters(text, separator, errors, memory.part), max_bytes)
    for piece in up_to_separators(pieces, separator, text.name, memory.part):
        *documents, last = [piece] if separator is None else piece.split(separator)
        yield from documents
        if holds_text(last.encode()):
            yield last


def _up_to(texts: Iterable[str], max_bytes: int) -> Iterator[str]:
    for text in texts:
        data = text.encode()
        if len(data) >= max_bytes:
            yield data[:max_bytes].decode(errors="ignore")
            return
        yield text
        max_bytes -= len(data)
