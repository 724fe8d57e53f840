"""One pass of encoding: takes parts in order, sends documents to their token files, and knows how far it has come."""

import hashlib
import time
from collections.abc import Sequence

import numpy as np

from shared.bpe import Tokenizer
from trainer.text.sources import Input, Records
from trainer.tokens.encoding_state import EncodingState, Position
from trainer.tokens.encoding_units import EndOfSource, Unit
from trainer.tokens.held_out_end import place_to_cut
from trainer.tokens.token_file import Ids, Manifest, Source
from trainer.tokens.writer import NoRoomError, TokenFileWriter, Written

# How often the state is saved, so that little is lost when the process is killed.
_SAVE_SECONDS = 5.0
_IDS_AT_ONCE = 1 << 20


class EncodingRun:
    """A pass over inputs, from a position on.

    Args:
        inputs: What is encoded.
        writers: One, or one for training and one for validation documents.
        tokenizer: Whose ids they are.
        end_of_text_id: The id after each document.
        validation: With two writers, the share of documents that goes to the second, and a seed for the choice.
        position: Where it begins.
        state: Where it is saved.
        overwrite: Saved with it: whether token files may be replaced.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        writers: Sequence[TokenFileWriter],
        tokenizer: Tokenizer,
        end_of_text_id: int,
        validation: tuple[float, int],
        *,
        position: Position,
        state: EncodingState,
        overwrite: bool,
    ):
        self.position = position
        self._inputs = inputs
        self._writers = writers
        self._tokenizer = tokenizer
        self._end_of_text_id = end_of_text_id
        self._fraction, self._seed = validation
        self._state = state
        self._overwrite = overwrite
        self._is_repeatable = all(given.content.version is not None for given in inputs)
        self._saved = time.monotonic()

    def take(self, item: Unit | EndOfSource) -> None:
        """Write the next part.

        Raises:
            NoRoomError: If the disk has no room for it.
        """
        if isinstance(item, EndOfSource):
            self._finish_source()
            return
        ended = self._route(item.ids, item.num_bytes)
        position = self.position
        position.offset = item.end
        position.bytes_read += item.text_bytes
        position.replaced += item.replaced
        position.digest.update(item.data)
        position.is_open = item.is_open or (position.is_open and not ended)
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save()

    def save(self) -> bool:
        """Make it possible to go on from here; False where an input can be read only once.

        Raises:
            NoRoomError: If the disk has no room for it.
        """
        if not self._is_repeatable:
            return False
        written = [writer.sync() for writer in self._writers]
        try:
            self._state.save(self.position, written, overwrite=self._overwrite)
        except OSError as error:
            raise NoRoomError(f"{self._state.folder.manifest} cannot be written: {error.strerror}") from None
        self._saved = time.monotonic()
        return True

    def finish(self) -> None:
        """When all has been taken: hold out the end of the text if no document was."""
        if len(self._writers) == 2 and not self._writers[1].documents:
            self._hold_out_end()
        if self.position.is_open:  # the document that was cut
            self._writers[0].write(np.array([self._end_of_text_id], dtype=np.uint32), 1)
            self.position.is_open = False

    def commit(self) -> list[Manifest]:
        """Give the token files their names."""
        self.save()  # so that one killed from here on can be finished
        return [writer.commit(tuple(self.position.sources)) for writer in self._writers]

    def _hold_out_end(self) -> None:
        """Move the end of the text from the first writer to the second. Nothing is lost if the process is killed."""
        train, validation = self._writers
        white_space = validation.ids()  # behind the last separator
        if len(white_space):
            train.write(white_space, 0)
            validation.go_back(Written())
            self.save()
        ids = train.ids()
        place = place_to_cut(ids, self._fraction, self._tokenizer, self._end_of_text_id)
        if place is None:
            return
        for begin in range(place, len(ids), _IDS_AT_ONCE):
            part = ids[begin : begin + _IDS_AT_ONCE]
            validation.write(part, int(np.count_nonzero(part == self._end_of_text_id)))
        whole, moved = train.sync(), validation.sync()
        train.go_back(Written(place, whole.documents - moved.documents, whole.bytes - moved.bytes))
        self.position.is_open = bool(ids[place - 1] != self._end_of_text_id)
        self.position.end_is_held_out = True
        self.save()  # what was moved is on the disk twice until the files get their names

    def _route(self, ids: Ids, num_bytes: int | None) -> int:
        """Send every document to the writer that it belongs to, whatever the parts that it comes in.

        Returns:
            How many ended.
        """
        ends = np.flatnonzero(ids == self._end_of_text_id) + 1
        self.position.source_documents += len(ends)
        if len(self._writers) == 1:
            self._writers[0].write(ids, len(ends), num_bytes)
            self.position.documents += len(ends)
            return len(ends)
        start = 0
        for end in ends.tolist():
            self._writer().write(ids[start:end], 1)
            self.position.documents += 1
            start = end
        if start < len(ids):
            self._writer().write(ids[start:], 0)
        return len(ends)

    def _writer(self) -> TokenFileWriter:
        """The writer of the document that is being read; the first one is for training, which so always has one."""
        digest = hashlib.blake2b(f"{self._seed}:{self.position.documents}".encode(), digest_size=8).digest()
        in_validation = int.from_bytes(digest, "little") < self._fraction * 2**64
        return self._writers[1 if in_validation and self.position.documents else 0]

    def _finish_source(self) -> None:
        position = self.position
        given = self._inputs[position.source]
        was_open = position.is_open
        if was_open:
            self._route(np.array([self._end_of_text_id], dtype=np.uint32), 0)
        size, digest = position.offset, position.digest
        if not given.is_plain:
            with given.path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256")
                size = file.tell()
        # An empty file ends no document, as one that ends with a separator does. Records end by themselves.
        ends_with_separator = not was_open and position.source_documents > 0 and not isinstance(given.content, Records)
        source = Source(str(given.path), size, digest.hexdigest(), position.source_documents, ends_with_separator)
        self.position = Position(
            source=position.source + 1,
            documents=position.documents,
            bytes_read=position.bytes_read,
            replaced=position.replaced,
            sources=[*position.sources, source],
        )
