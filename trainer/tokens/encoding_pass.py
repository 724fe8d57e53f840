"""One pass of encoding: sends documents to their token files, and saves which inputs are finished."""

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shared.bpe import Tokenizer
from shared.system.stages import Stage, no_stage
from trainer.settings.encode import EncodeSettings
from trainer.text.sources import Input, Records
from trainer.tokens.encoding_state import EncodingState, Finished
from trainer.tokens.parallel_encoder import EncodedChunk, EndOfInput
from trainer.tokens.splitting import is_validation, place_to_cut
from trainer.tokens.token_file import Ids, Manifest, Mask, Source
from trainer.tokens.writer import TokenFileWriter, WriteError, Written

# How often finished inputs are saved, after the first: bringing many small ones to the disk one by one would take
# longer than encoding them.
_SAVE_SECONDS = 5.0
_IDS_AT_ONCE = 1 << 20


@dataclass
class _Current:
    """How far the input that is being encoded has come.

    Attributes:
        documents: Documents that ended in it.
        is_open: Whether text other than white space came after the last of them.
        size: Its bytes so far, where they are those of the text.
        digest: Of these.
    """

    documents: int = 0
    is_open: bool = False
    size: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)


class EncodingPass:
    """Writes the ids of inputs, after those that are finished.

    Args:
        inputs: All that is encoded.
        writers: One, or one for training and one for validation documents.
        tokenizer: The ids' tokenizer.
        settings: The validation fraction, and the seed for the choice.
        state: Where finished inputs are saved.
        finished: What is done already.
        stage: Called for each stage of the work.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        writers: Sequence[TokenFileWriter],
        tokenizer: Tokenizer,
        settings: EncodeSettings,
        state: EncodingState,
        *,
        finished: Finished,
        stage: Stage = no_stage,
    ):
        self.finished = finished
        self._inputs = inputs
        self._writers = writers
        self._tokenizer = tokenizer
        self._end_of_text_id = writers[0].end_of_text_id
        self._is_chat = settings.chat
        self._fraction, self._seed = settings.val_fraction or 0.0, settings.seed
        self._state = state
        self._stage = stage
        self._current = _Current()
        self._documents = sum(source.documents for source in finished.sources)
        self._saved = -math.inf

    def take(self, item: EncodedChunk | EndOfInput) -> None:
        """Write the next chunk.

        Raises:
            WriteError: If the disk is full.
        """
        if isinstance(item, EndOfInput):
            self._finish_input()
            return
        current = self._current
        with self._stage("write token files", item.text_bytes):
            has_ended = self._write(item.ids, item.num_bytes, item.mask)
        current.is_open = item.is_open or (current.is_open and not has_ended)
        with self._stage("hash text", len(item.data)):
            current.size += len(item.data)
            current.digest.update(item.data)
        self.finished.bytes_read += item.text_bytes
        self.finished.replaced += item.replaced
        for kind, (count, first) in item.findings.items():
            before, found = self.finished.findings.get(kind, (0, first))
            self.finished.findings[kind] = (before + count, found)

    def finish(self) -> None:
        """When all has been taken: hold out the end of the text if no document was, and end the last document."""
        if len(self._writers) == 2 and not self._writers[1].documents and not self._is_chat:
            self._save()
            with self._stage("hold out the end"):
                self._hold_out_end()
        if self.finished.is_open:
            self._writers[0].write(self._end_of_text, 1)
            self.finished.is_open = False
        self._save()

    def commit(self) -> list[Manifest]:
        """Give the token files their names."""
        with self._stage("save"):
            return [writer.commit(tuple(self.finished.sources)) for writer in self._writers]

    @property
    def _end_of_text(self) -> Ids:
        return np.array([self._end_of_text_id], dtype=np.uint32)

    def _save(self) -> None:
        with self._stage("save"):
            written = [writer.sync() for writer in self._writers]
            try:
                self._state.save(self.finished, written)
            except OSError as error:
                raise WriteError(f"{self._state.folder.manifest} cannot be written: {error.strerror}") from None
        self._saved = time.monotonic()

    def _hold_out_end(self) -> None:
        """Move the end of the text from the first writer to the second. Nothing is lost if the process is killed."""
        train, validation = self._writers
        white_space = validation.ids()  # after the last separator
        if len(white_space):
            train.write(white_space, 0)
            validation.go_back(Written())
            self._save()
        ids = train.ids()
        place = place_to_cut(ids, self._fraction, self._tokenizer, self._end_of_text_id)
        if place is None:
            return
        for begin in range(place, len(ids), _IDS_AT_ONCE):
            part = ids[begin : begin + _IDS_AT_ONCE]
            validation.write(part, int(np.count_nonzero(part == self._end_of_text_id)))
        whole, moved = train.sync(), validation.sync()
        train.go_back(Written(place, whole.documents - moved.documents, whole.bytes - moved.bytes))
        self.finished.is_open = bool(ids[place - 1] != self._end_of_text_id)
        self.finished.end_is_held_out = True
        self._save()  # what was moved is on the disk twice until the files get their names

    def _write(self, ids: Ids, num_bytes: int | None, mask: Mask | None = None) -> bool:
        """Write every document to the file of its split, whatever the chunks that it comes in.

        Returns:
            Whether one ended.
        """
        ends = np.flatnonzero(ids == self._end_of_text_id) + 1
        self._current.documents += len(ends)
        if len(self._writers) == 1:
            self._writers[0].write(ids, len(ends), num_bytes, mask)
            self._documents += len(ends)
            return len(ends) > 0
        start = 0
        for end in ends.tolist():
            self._writer().write(ids[start:end], 1, mask=None if mask is None else mask[start:end])
            self._documents += 1
            start = end
        if start < len(ids):
            self._writer().write(ids[start:], 0)
        return len(ends) > 0

    def _writer(self) -> TokenFileWriter:
        """The writer of the document that is being read."""
        return self._writers[is_validation(self._documents, self._fraction, self._seed)]

    def _finish_input(self) -> None:
        current, given = self._current, self._inputs[len(self.finished.sources)]
        was_open = current.is_open
        if was_open:
            self._write(self._end_of_text, 0)
        size, digest = current.size, current.digest
        if not given.is_plain:
            with self._stage("hash text", given.path.stat().st_size), given.path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256")
                size = file.tell()
        # An empty file ends no document, as one that ends with a separator does. Records end by themselves.
        ends_with_separator = not was_open and current.documents > 0 and not isinstance(given.content, Records)
        source = Source(str(given.path), size, digest.hexdigest(), current.documents, ends_with_separator)
        self.finished.sources.append(source)
        self._current = _Current()
        # After the last one, `finish` saves.
        if len(self.finished.sources) < len(self._inputs) and time.monotonic() - self._saved > _SAVE_SECONDS:
            self._save()
