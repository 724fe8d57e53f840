"""The tokens of a text or of a token file, one by one, reading no further than what is asked for."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from shared.bpe import Tokenizer
from trainer.console.masked_text import ShownDocument, ShownPart
from trainer.console.token_lines import ShownToken
from trainer.errors import TrainerError
from trainer.settings.text import DocumentSettings
from trainer.text.memory import EncodingMemory
from trainer.text.sources import Input, Records
from trainer.text.utf8 import has_text
from trainer.tokens.encoded_chunk import EndOfInput
from trainer.tokens.job import end_of_text_id
from trainer.tokens.parallel_encoder import ParallelEncoder
from trainer.tokens.token_file import Ids, TokenFile

_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
_IDS_AT_ONCE = 1 << 14


def tokens_of_file(file: TokenFile, tokenizer: Tokenizer, document: int | None, start: int) -> Iterator[ShownToken]:
    """The tokens of a token file, or of one of its documents, from token `start` on.

    Raises:
        TrainerError: There is no such document or token.
        TokenFileError: See `TokenFile.read`.
        TokenizerError: An id has no token.
    """
    if document is not None:
        end = file.manifest.end_of_text_id
        yield from _shown_tokens(_document(file.blocks(), end, document, tokenizer, str(file.path)), tokenizer, start)
        return
    if start >= len(file):
        raise TrainerError(f"{file.path} has {len(file):,} tokens, counted from 0: there is no token {start:,}")
    places = range(start, len(file), _IDS_AT_ONCE)
    parts = ((place, file.read(place, min(place + _IDS_AT_ONCE, len(file)))) for place in places)
    yield from _shown_tokens(parts, tokenizer, 0)


def documents_of_file(
    file: TokenFile, tokenizer: Tokenizer, start: int, count: int, most: int
) -> Iterator[ShownDocument]:
    """The documents of a token file from number `start` on, each with the id that ends it; at most `count` of them.

    At most the first `most` tokens of each are shown.

    Raises:
        TrainerError: There is no document `start`.
        TokenFileError: See `TokenFile.read`.
        TokenizerError: An id has no token.
    """
    special = {*tokenizer.special_tokens.values()}
    end_id, number = file.manifest.end_of_text_id, 0
    parts: list[ShownPart] = []
    left_out = 0
    for ids, mask in file.masked_blocks():
        begin = 0
        for end in [*(np.flatnonzero(ids == end_id) + 1).tolist(), len(ids)]:
            if number >= start:
                stop = min(end, begin + most - len(parts))
                pairs = zip(ids[begin:stop].tolist(), mask[begin:stop].tolist(), strict=True)
                parts += [ShownPart(tokenizer.token_bytes(i), bool(counted), i in special) for i, counted in pairs]
                left_out += end - max(begin, stop)
            if begin < end and ids[end - 1] == end_id:
                if number >= start:
                    yield ShownDocument(number, parts, left_out)
                number, parts, left_out = number + 1, [], 0
            if number >= start + count:
                return
            begin = end
    if has_text(b"".join(part.data for part in parts)):  # else there is no document after the last end
        yield ShownDocument(number, parts, left_out)
    elif number <= start:
        raise TrainerError(f"{file.path} has {number:,} documents, counted from 0: there is no document {start:,}")


def tokens_of_text(
    inputs: Sequence[Input], tokenizer: Tokenizer, settings: DocumentSettings, document: int | None, start: int
) -> Iterator[ShownToken]:
    """The same of the ids that `encode` would write for a text, but without an end after the last document.

    A separator that is not a special token of the tokenizer is ordinary text.

    Raises:
        UsageError: There are records, and the tokenizer has no id to put after each.
        CorpusError: An input cannot be read as UTF-8.
        TrainerError: There is no such document or token.
    """
    separator = settings.document_separator if settings.document_separator in tokenizer.special_tokens else None
    has_end = separator is not None or tokenizer.end_of_text_id is not None
    needs_end = any(isinstance(given.content, Records) for given in inputs)
    end = end_of_text_id(tokenizer, separator) if has_end or needs_end else tokenizer.vocab_size
    memory = EncodingMemory(settings.memory_bytes, threads=1)
    encoder = ParallelEncoder(tokenizer, separator, end, settings.errors, memory, threads=1)
    parts = _with_ends_between(encoder, inputs, end)
    name = ", ".join(given.content.name for given in inputs)
    if document is not None:
        yield from _shown_tokens(_document(parts, end, document, tokenizer, name), tokenizer, start)
        return
    yield from _shown_tokens(_placed(parts), tokenizer, start)


def _with_ends_between(encoder: ParallelEncoder, inputs: Sequence[Input], end: int) -> Iterator[Ids]:
    is_open = is_between = False
    for item in encoder.encode(inputs):
        if isinstance(item, EndOfInput):
            is_between = is_open
            is_open = False
            continue
        if is_between:
            yield np.array([end], item.ids.dtype)
            is_between = False
        is_open = item.is_open or (is_open and not (item.ids == end).any())
        yield item.ids


def _placed(parts: Iterable[Ids]) -> Iterator[tuple[int, Ids]]:
    place = 0
    for ids in parts:
        yield place, ids
        place += len(ids)


def _document(
    parts: Iterator[Ids], end: int, number: int, tokenizer: Tokenizer, name: str
) -> Iterator[tuple[int, Ids]]:
    """The ids of a document, with their places; what follows the last end is one if it is not only white space."""
    held: list[tuple[int, Ids]] = []  # the beginning of the document, as long as it is white space
    done = 0
    for place, ids in _placed(parts):
        ends = np.flatnonzero(ids == end)
        if done + len(ends) < number:
            done += len(ends)
            continue
        begin = 0 if done == number else int(ends[number - done - 1]) + 1
        done = number
        later = ends[ends >= begin]
        stop = int(later[0]) if len(later) else len(ids)
        held.append((place + begin, ids[begin:stop]))
        if len(later) or has_text(tokenizer.decode_bytes(held[-1][1].tolist(), continues=True)):
            yield from held
            if not len(later):
                yield from _rest(parts, end, place + len(ids))
            return
    raise TrainerError(f"{name} has {done:,} documents, counted from 0: there is no document {number:,}")


def _rest(parts: Iterator[Ids], end: int, place: int) -> Iterator[tuple[int, Ids]]:
    """What follows up to the end of the document."""
    for ids in parts:
        ends = np.flatnonzero(ids == end)
        yield place, ids[: ends[0]] if len(ends) else ids
        if len(ends):
            return
        place += len(ids)


def _shown_tokens(parts: Iterable[tuple[int, Ids]], tokenizer: Tokenizer, start: int) -> Iterator[ShownToken]:
    """The tokens from number `start` of the parts on."""
    special = {*tokenizer.special_tokens.values()}
    count = byte = character = 0
    for place, ids in parts:
        skipped = min(len(ids), max(0, start - count))
        count += skipped
        data = tokenizer.decode_bytes(ids[:skipped].tolist(), continues=True)
        byte, character = byte + len(data), character + _num_characters(data)
        for index, token_id in enumerate(ids[skipped:].tolist(), start=place + skipped):
            data = tokenizer.token_bytes(token_id)
            within = data[:1] and data[0] in _CONTINUATION_BYTES
            yield ShownToken(
                index, byte, max(0, character - 1) if within else character, token_id, data, token_id in special
            )
            count, byte, character = count + 1, byte + len(data), character + _num_characters(data)
    if count <= start and start:
        raise TrainerError(f"there are {count:,} tokens, counted from 0: there is no token {start:,}")


def _num_characters(data: bytes) -> int:
    """Characters that begin in it."""
    return len(data.translate(None, _CONTINUATION_BYTES))
