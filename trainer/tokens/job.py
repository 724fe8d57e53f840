"""What is encoded, and how: everything that the shards of a part of the text are a function of.

Parts are cut by the sizes and separators of the texts alone (`trainer.text.sections`). So a part's shards are the same
bytes on any machine, for any number of threads, and in any order of the parts.
"""

import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import xxhash

from shared.bpe import Tokenizer
from shared.system.stages import Stage, no_stage
from trainer.conversations.messages import FIELDS
from trainer.conversations.template import ChosenTemplate
from trainer.errors import UsageError
from trainer.settings.encode import EncodeSettings
from trainer.storage.folder import Folder
from trainer.storage.remote import display_path
from trainer.text.memory import EncodingMemory
from trainer.text.sections import Section, divide, open_section
from trainer.text.sources import Input, open_inputs, open_records
from trainer.tokens.conversation_encoder import ConversationEncoder, LengthLimit
from trainer.tokens.encoded_chunk import EncodedChunk, EndOfInput
from trainer.tokens.parallel_encoder import ParallelEncoder
from trainer.tokens.part_writer import PartWriter
from trainer.tokens.shard_writer import ShardWriter, Target
from trainer.tokens.splitting import Split

BYTES_PER_TOKEN = 3
"""Bytes of text in a part for each of `shard_tokens`. Most texts have more for each token: a part is one shard."""

Sections = tuple[Section, ...]


@dataclass(frozen=True)
class EncodingJob:
    """The texts, the tokenizer, and how one becomes token files.

    Attributes:
        inputs: The texts, in order.
        tokenizer: The tokenizer.
        settings: What is written, and how text is read.
        end_of_text_id: The id after each document.
        template: The chat template; of conversations only.
    """

    inputs: Sequence[Input]
    tokenizer: Tokenizer
    settings: EncodeSettings
    end_of_text_id: int
    template: ChosenTemplate | None = None

    @classmethod
    def open(
        cls, paths: Sequence[Path], tokenizer: Tokenizer, settings: EncodeSettings, template: ChosenTemplate | None
    ) -> "EncodingJob":
        """Open the texts.

        Raises:
            UsageError: The settings do not fit the tokenizer or the inputs.
            CorpusError: An input does not exist or cannot be read.
        """
        ends = end_of_text_id(tokenizer, settings.document_separator)
        inputs = open_inputs(paths, text_field=settings.text_field) if template is None else open_records(paths, FIELDS)
        return cls(inputs, tokenizer, settings, ends, template)

    @property
    def is_repeatable(self) -> bool:
        """Whether all inputs can be read again."""
        return all(given.content.version is not None for given in self.inputs)

    @cached_property
    def parts(self) -> list[Sections]:
        """What the text is divided into."""
        size = BYTES_PER_TOKEN * self.settings.shard_tokens
        return divide(
            self.inputs, self.settings.document_separator, size, at_any_pretoken=self.tokenizer.can_split_bytes
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that decides the shards except the texts, by readable names."""
        chat = {} if self.template is None else {"chat_template": self.template.sha256}
        return {"tokenizer": self.tokenizer.fingerprint, **self.settings.identity(), **chat}

    def key(self, number: int) -> str:
        """A hash of all that decides the shards of a part except the number of its first document."""
        texts = [[*self._version(section), *section[1:]] for section in self.parts[number]]
        return xxhash.xxh3_128(json.dumps([self.identity, texts], sort_keys=True).encode()).hexdigest()

    def target(self, folder: Folder, scratch: Path) -> Target:
        """Where its shards go."""
        has_mask = self.template is not None
        return Target(folder, scratch, self.tokenizer, self.end_of_text_id, self.settings.shard_tokens, has_mask)

    def writer(self, number: int, target: Target, first_document: int, stage: Stage = no_stage) -> PartWriter:
        """The writer that takes the chunks of a part."""
        names = self.settings.splits
        writers = {name: ShardWriter(target, f"{name}-{number:05}", number) for name in names}
        split = Split(names, self.settings.val_fraction or 0.0, self.settings.seed)
        return PartWriter(
            self.parts[number],
            writers,
            split,
            self.end_of_text_id,
            first_document=first_document,
            stage=stage,
        )

    def chunks(
        self, numbers: Sequence[int], threads: int, stage: Stage = no_stage
    ) -> Generator[EncodedChunk | EndOfInput, None, None]:
        """The encoded chunks of some parts, in order; to be closed."""
        memory = EncodingMemory(self.settings.memory_bytes, threads)
        encoder: ParallelEncoder | ConversationEncoder
        if self.template is None:
            separator, errors = self.settings.document_separator, self.settings.errors
            encoder = ParallelEncoder(self.tokenizer, separator, self.end_of_text_id, errors, memory, threads, stage)
        else:
            limit = LengthLimit(self.settings.context_length, cut=self.settings.too_long == "cut")
            encoder = ConversationEncoder(
                self.tokenizer,
                self.template.file,
                self.end_of_text_id,
                limit,
                memory=memory,
                threads=threads,
                stage=stage,
            )
        return encoder.encode([*self._opened(numbers)])

    def _opened(self, numbers: Sequence[int]) -> Iterator[Input]:
        for number in numbers:
            for section in self.parts[number]:
                yield open_section(section, self.inputs[section.source])

    def _version(self, section: Section) -> tuple[str, str | None]:
        given = self.inputs[section.source]
        return display_path(given.path), given.content.version


def end_of_text_id(tokenizer: Tokenizer, separator: str | None) -> int:
    """The id after each document.

    Raises:
        UsageError: The tokenizer has none, or not the one that is asked for.
    """
    known = ", ".join(map(repr, tokenizer.special_tokens)) or "none"
    if separator is None:
        if tokenizer.end_of_text_id is None:
            raise UsageError(
                f"the tokenizer has no end-of-text token to put after each file; its special tokens: {known}"
            )
        return tokenizer.end_of_text_id
    if separator not in tokenizer.special_tokens:
        raise UsageError(
            f"the separator {separator!r} is not a special token of the tokenizer (it has: {known}); train a tokenizer "
            "with it, or encode with --no-separator"
        )
    return tokenizer.special_tokens[separator]
