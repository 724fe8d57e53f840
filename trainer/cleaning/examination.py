"""The first pass over a part of the corpus: what is kept of its documents to decide which of them stay.

A file for each part, of columns one behind the other, so that a pass over one of them reads nothing else:

    header (JSON, padded to 64 KiB) | reasons | sizes | digests | keys of band 0 | keys of band 1 | ... | signatures
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from trainer.cleaning.corpus import Corpus, Part
from trainer.cleaning.filters import load_filters, reason_to_leave
from trainer.cleaning.signatures import HASHES, sign
from trainer.errors import TrainerError
from trainer.text.batches import batches

_HEADER_BYTES = 1 << 16
_BATCH_CHARACTERS = 1 << 20
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Examined:
    """The file of a part.

    Attributes:
        path: The file.
        bands: Bands of each signature, 0 without signatures.
    """

    path: Path
    bands: int

    @cached_property
    def header(self) -> dict[str, Any]:
        """`documents`, and `reasons`, why some leave, by number from 1."""
        with self.path.open("rb") as file:
            return json.loads(file.read(_HEADER_BYTES))  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return int(self.header["documents"])

    def is_complete(self) -> bool:
        """Whether the file is there and complete."""
        try:
            size = _HEADER_BYTES + len(self) * (26 + (8 * self.bands + 2 * HASHES if self.bands else 0))
            return self.path.stat().st_size == size
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def reasons(self) -> NDArray[np.uint16]:
        """0, or the number of a reason in the header."""
        return self._column(0, np.uint16)

    def sizes(self) -> NDArray[np.uint64]:
        """Bytes of text."""
        return self._column(2, np.uint64)

    def digests(self) -> NDArray[np.uint64]:
        """[documents, 2]: 128 bits of BLAKE2b of the text without white space around it."""
        return self._column(10, np.uint64, 2)

    def keys(self, band: int) -> NDArray[np.uint64]:
        """The keys of a band."""
        return self._column(26 + 8 * band, np.uint64)

    def signatures(self) -> NDArray[np.uint16]:
        """[documents, HASHES]."""
        return self._column(26 + 8 * self.bands, np.uint16, HASHES)

    def _column(self, before: int, dtype: Any, width: int = 1) -> NDArray[Any]:
        """A column behind so many bytes of each document's others."""
        count = len(self)
        shape = (count,) if width == 1 else (count, width)
        if not count:
            return np.empty(shape, dtype)
        return np.memmap(self.path, dtype, "r", _HEADER_BYTES + before * count, shape)


def examine(corpus: Corpus, part: Part, path: Path) -> int:
    """Read a part of the corpus and write what is known of its documents to a file.

    Returns:
        How many documents there are.

    Raises:
        CorpusError: If it cannot be read.
        TrainerError: If a filter fails.
    """
    filters, banding = load_filters(corpus.settings.filter), corpus.banding
    names: dict[str, int] = {}
    count = 0
    header = _header(count, names)
    with ExitStack() as stack:
        # A compressed file is one part, however many documents it has: columns grow on the disk.
        files: list[BinaryIO] = [
            stack.enter_context(tempfile.TemporaryFile(dir=path.parent))
            for _ in range(3 if banding is None else 3 + banding.bands + 1)
        ]
        for batch in batches(corpus.documents(part), _BATCH_CHARACTERS, itemgetter(0)):
            reasons = [reason_to_leave(text, filters, place) for text, place in batch]
            numbers = [0 if reason is None else names.setdefault(reason, len(names) + 1) for reason in reasons]
            count += len(batch)
            header = _header(count, names)
            for file, column in zip(files, _columns([text for text, _ in batch], numbers, corpus), strict=True):
                file.write(column)
        with path.open("wb") as whole:
            whole.write(header)
            for file in files:
                file.seek(0)
                shutil.copyfileobj(file, whole, _BLOCK_BYTES)
    return count


def _header(count: int, names: Collection[str]) -> bytes:
    header = json.dumps({"documents": count, "reasons": list(names)}).encode()
    if len(header) > _HEADER_BYTES:
        raise TrainerError(
            f"the filters gave {len(names):,} different reasons, such as {min(names, key=len)!r}: a reason is for a "
            "kind of documents, and no more than some hundred are counted"
        )
    return header.ljust(_HEADER_BYTES)


def _columns(texts: Sequence[str], reasons: Sequence[int], corpus: Corpus) -> Iterator[bytes]:
    """What each column has of some documents, in the order of the columns."""
    data = [text.encode() for text in texts]
    yield np.array(reasons, np.uint16).tobytes()
    yield np.array([*map(len, data)], np.uint64).tobytes()
    yield b"".join(hashlib.blake2b(each.strip(), digest_size=16).digest() for each in data)
    if corpus.banding is not None:
        signatures, keys = sign(texts, corpus.settings.shingle, corpus.banding)
        yield from (band.tobytes() for band in keys.T)
        yield signatures.tobytes()
