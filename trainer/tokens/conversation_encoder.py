"""Encoding conversations: rendered by a chat template, with a mask of what the assistant says."""

import itertools
import logging
import queue
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from shared.bpe import AddedToken, SourceError, Tokenizer
from shared.bpe.training import read_error
from shared.chat import (
    ChatRenderer,
    ChatTemplateError,
    Conversation,
    Protection,
    RenderedAnswers,
    TemplateFile,
    find_end_of_turn,
)
from shared.system.stages import Stage, no_stage, staged
from trainer.conversations.messages import Messages, UnusableError, read_conversation
from trainer.errors import TrainerError
from trainer.text.memory import EncodingMemory
from trainer.text.sources import Input, Records
from trainer.text.utf8 import CorpusError
from trainer.tokens.encoded_chunk import EncodedChunk, EndOfInput, Findings, ends_in
from trainer.tokens.parallel_encoder import Job, in_order, record_batches
from trainer.tokens.token_file import Ids, Mask, dtype_for

logger = logging.getLogger(__name__)

_BATCH_BYTES = 3 << 18


class _Piece(NamedTuple):
    """A part of a rendered conversation.

    Attributes:
        content: Its text as `Tokenizer.encode_segments` takes it, or an added token.
        counted: Whether the loss counts its tokens.
        ends_answer: Whether an answer ends with it.
    """

    content: str | AddedToken
    counted: bool
    ends_answer: bool


class LengthLimit(NamedTuple):
    """How long conversations may be.

    Attributes:
        context_length: Inputs of a model, which a conversation of one id more fits into; None for no limit.
        cut: Whether a longer one is cut after the last answer that ends in time; else it is left out.
    """

    context_length: int | None
    cut: bool = False


class ConversationEncoder:
    """Encodes files of conversations.

    Args:
        tokenizer: The tokenizer.
        templates: The chat template.
        end_of_text_id: The id after each conversation.
        limit: Of the length of conversations.
        memory: Limits of records.
        threads: How many threads encode.
        stage: Called for each stage of the work, from any thread.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        templates: TemplateFile,
        end_of_text_id: int,
        limit: LengthLimit,
        *,
        memory: EncodingMemory,
        threads: int,
        stage: Stage = no_stage,
    ) -> None:
        self._tokenizer = tokenizer
        self._templates = templates
        self._sources = "".join(templates.templates.values())
        self._end_of_text_id = end_of_text_id
        self._limit = limit
        self._memory = memory
        self._threads = threads
        self._stage = stage
        self._renderers = [ChatRenderer(templates) for _ in range(threads)]
        self._idle: queue.LifoQueue[ChatRenderer] = queue.LifoQueue()
        for renderer in self._renderers:
            self._idle.put(renderer)
        self._dtype = dtype_for(tokenizer.vocab_size)
        self._end_of_turn: AddedToken | None = None

    def encode(self, inputs: Sequence[Input]) -> Generator[EncodedChunk | EndOfInput, None, None]:
        """All chunks of the inputs, in order; whole conversations, and a mask.

        Raises:
            CorpusError: If an input cannot be read, or a record is not a conversation at all.
            TrainerError: If the template exceeds its limits, or writes the id that ends documents within conversations.
        """
        self._tokenizer.warm_up()
        try:
            self._end_of_turn = find_end_of_turn(self._renderers[-1].render, self._tokenizer)
            if self._end_of_turn is None:
                logger.warning(
                    "the chat template ends an answer with no special token that the tokenizer has: a model learns to "
                    "end its answers only where a conversation ends"
                )
            max_bytes = self._memory.part + 2 * self._threads * _BATCH_BYTES
            yield from in_order(self._jobs(inputs), self._threads, max_bytes, self._stage)
        finally:
            for renderer in self._renderers:
                renderer.close()

    def _jobs(self, inputs: Sequence[Input]) -> Iterator[Job]:
        for content in (each.content for each in inputs):
            assert isinstance(content, Records)
            rows = staged(content.rows(None, self._memory.record), self._stage, "read")
            try:
                for _, batch, size in record_batches(content.name, rows, self._memory):
                    yield Job(partial(self._encode_records, batch), size)
            except SourceError as error:
                raise CorpusError(str(error)) from None
            except OSError as error:
                raise CorpusError(str(read_error(content.name, error))) from None
            yield Job(EndOfInput)

    def _encode_records(self, records: Sequence[tuple[str, str]]) -> EncodedChunk:
        findings: Findings = {}
        places: list[str] = []
        conversations: list[Messages] = []
        with self._stage("read conversations"):
            for text, place in records:
                try:
                    conversations.append(read_conversation(text, place))
                except UnusableError as error:
                    _add(findings, error.kind, f"{place}: {error.detail}" if error.detail else place)
                    continue
                places.append(place)
                for note in conversations[-1].notes:
                    _add(findings, note, place)
        pieces: list[list[_Piece]] = []
        usable: list[str] = []
        for conversation, rendered, place in zip(conversations, self._render(conversations), places, strict=True):
            try:
                pieces.append(self._pieces(conversation, rendered))
            except UnusableError as error:
                _add(findings, error.kind, f"{place}: {error.detail}")
                continue
            usable.append(place)
        data = "".join(text for text, _ in records).encode(errors="surrogatepass")
        with self._stage("encode", len(data)):
            ids, mask = self._joined(pieces, usable, findings)
        return EncodedChunk(ids, ends_in(ids, self._end_of_text_id), False, data, None, 0, mask, findings)

    def _render(self, conversations: Sequence[Messages]) -> list[tuple[RenderedAnswers, str] | ChatTemplateError]:
        """Each with the mark that is in its special tokens."""
        if not conversations:
            return []
        with self._stage("render"), self._renderer() as renderer:
            given = [{"messages": each.messages, "tools": each.tools} for each in conversations]
            protection = Protection(self._tokenizer.special_tokens, given, self._sources)
            protected = [Conversation(**protection.protect(each)) for each in given]
            end_of_turn = None if self._end_of_turn is None else self._end_of_turn.content
            try:
                found = renderer.render_answers(protected, protection.answer_marks, end_of_turn)
            except ChatTemplateError as error:
                raise TrainerError(str(error)) from None
        return [each if isinstance(each, ChatTemplateError) else (each, protection.mark) for each in found]

    @contextmanager
    def _renderer(self) -> Iterator[ChatRenderer]:
        renderer = self._idle.get()
        try:
            yield renderer
        finally:
            self._idle.put(renderer)

    def _pieces(self, conversation: Messages, found: tuple[RenderedAnswers, str] | ChatTemplateError) -> list[_Piece]:
        """The text of a conversation, cut at added tokens and where answers begin and end."""
        if isinstance(found, ChatTemplateError):
            raise UnusableError("refused by the chat template", str(found))
        (text, answers), mark = found
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UnusableError("text with half of a UTF-16 pair", "U+D800 to U+DFFF") from None
        counted = conversation.counted
        if not all(counted) and len(answers) != len(counted):
            raise UnusableError(
                "refused by the chat template", "it marks other parts than the answers, some of weight 0"
            )
        pieces: list[_Piece] = []

        def add(part: str, is_counted: bool) -> None:
            previous = pieces[-1].content if pieces else None
            segments = self._tokenizer.split_marked(part, mark, previous)
            pieces.extend(_Piece(each, is_counted, False) for each in segments)

        place = 0
        for number, (begin, end) in enumerate(answers):
            add(text[place:begin], False)
            add(text[begin:end], all(counted) or counted[number])
            pieces[-1] = pieces[-1]._replace(ends_answer=True)
            place = end
        add(text[place:], False)
        return pieces

    def _joined(
        self, conversations: Sequence[list[_Piece]], places: Sequence[str], findings: Findings
    ) -> tuple[Ids, Mask]:
        """The ids of the conversations that fit, one after the other, and their mask."""
        texts = [piece.content for pieces in conversations for piece in pieces if isinstance(piece.content, str)]
        encoded = iter(self._tokenizer.encode_segments(texts))
        parts: list[Ids] = [np.empty(0, self._dtype)]
        counted: list[bool] = [False]
        for pieces, place in zip(conversations, places, strict=True):
            own = [
                next(encoded) if isinstance(piece.content, str) else np.array([piece.content.id], np.uint32)
                for piece in pieces
            ]
            kept = self._num_kept(pieces, [len(part) for part in own], place, findings)
            if not kept:
                continue
            parts += own[:kept]
            counted += [piece.counted for piece in pieces[:kept]]
            last = pieces[kept - 1]
            if not self._is_end(last):
                parts.append(np.array([self._end_of_text_id], np.uint32))
                # Where the template ends an answer with no token, this is what ends it.
                counted.append(last.ends_answer and last.counted and self._end_of_turn is None)
        mask = np.repeat(np.array(counted, np.uint8), [len(part) for part in parts])
        return np.concatenate(parts).astype(self._dtype), mask

    def _is_end(self, piece: _Piece) -> bool:
        return isinstance(piece.content, AddedToken) and piece.content.id == self._end_of_text_id

    def _num_kept(self, pieces: Sequence[_Piece], lengths: Sequence[int], place: str, findings: Findings) -> int:
        """How many pieces of a conversation are kept; 0 where it is left out."""
        if any(map(self._is_end, pieces[:-1])):
            token = self._tokenizer.token_bytes(self._end_of_text_id).decode()
            raise TrainerError(
                f"{place}: the chat template writes the token that ends documents, {token!r}, within a conversation; "
                "let another special token of the tokenizer end them (--separator)"
            )
        context, cut = self._limit
        if context is None:
            return len(pieces)
        lengths_with_end = zip(pieces, itertools.accumulate(lengths), strict=True)
        fits = [length + (not self._is_end(piece)) <= context + 1 for piece, length in lengths_with_end]
        if fits[-1]:
            return len(pieces)
        too_long = f"longer than a context of {context:,} tokens"
        ends = [number for number, piece in enumerate(pieces) if piece.ends_answer and fits[number]]
        kept = ends[-1] + 1 if cut and ends else 0
        if not any(piece.counted for piece in pieces[:kept]):
            _add(findings, f"{too_long}, left out", place)
            return 0
        _add(findings, f"{too_long}, cut after an answer", place)
        return kept


def _add(findings: Findings, kind: str, first: str) -> None:
    count, found = findings.get(kind, (0, first))
    findings[kind] = (count + 1, found)
