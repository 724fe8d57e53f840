"""Text kept out of training a tokenizer, to measure how well it compresses text that it has not seen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared.bpe import Tokenizer, TooLongError, encode_utf8
from shared.bpe.training import Chunk, Errors, Source, Specials, TextFile
from trainer.errors import UsageError
from trainer.storage.remote import display_path, local_path, url_of
from trainer.text.sizes import parse_size
from trainer.text.sources import open_sources, size_on_disk
from trainer.text.utf8 import valid_utf8

_FILE_BYTES = 1 << 20  # of a file that is named
# What is taken by default, of inputs so large that it makes no difference to the training.
_AUTOMATIC_BYTES = 1 << 20
_AUTOMATIC_FROM = 32 << 20
_LONGEST_PART = 1 << 22


@dataclass(frozen=True)
class HeldOut:
    """A sample of text.

    Attributes:
        name: Where it is from.
        parts: Its bytes.
    """

    name: str
    parts: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Its bytes."""
        return sum(map(len, self.parts))

    def bytes_per_token(self, tokenizer: Tokenizer) -> float | None:
        """Bytes per token of a tokenizer, without special tokens; None if there are no others."""
        special = list(tokenizer.special_tokens.values())
        lengths = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        for token_id, token in tokenizer.tokens.items():
            lengths[token_id] = len(token)
        num_bytes = num_tokens = 0
        for part in self.parts:
            ids = tokenizer.encode_to_numpy(part.decode(errors="replace"), allowed_special="all")
            ids = ids[~np.isin(ids, special)]
            num_tokens += len(ids)
            num_bytes += int(lengths[ids].sum())
        return num_bytes / num_tokens if num_tokens else None


def parse_held_out(text: str | None, inputs: Sequence[Path]) -> Path | int:
    """The value of the option: a file, or how many bytes of the inputs.

    Raises:
        UsageError: If it is neither.
    """
    if text is None:
        return _AUTOMATIC_BYTES if size_on_disk(inputs) >= _AUTOMATIC_FROM else 0
    path = local_path(Path(text))
    if path.exists() or url_of(path) is not None:
        return path
    if text.strip("0.") == "":
        return 0
    try:
        return parse_size(text)
    except UsageError:
        raise UsageError(f"--held-out {text!r} is neither an existing file nor a size such as 1M") from None


def from_file(path: Path, special_tokens: Sequence[str], text_field: str, errors: Errors) -> HeldOut:
    """The beginning of a file of any format, about a megabyte.

    Raises:
        CorpusError: If it cannot be read, or is not UTF-8 and must be.
        SourceError: If its first megabytes cannot be cut anywhere.
    """
    specials = Specials(map(encode_utf8, special_tokens))
    parts: list[bytes] = []
    left = _FILE_BYTES
    for source in open_sources([path], text_field=text_field, separator=next(iter(special_tokens), None)):
        for chunk in source.chunks(specials, 0, _LONGEST_PART):
            parts.append(valid_utf8(chunk.read().tobytes(), source.name, chunk.offset, errors)[0])
            left -= chunk.size
            if left <= 0:
                return HeldOut(display_path(path), tuple(parts))
    return HeldOut(display_path(path), tuple(parts))


def hold_out(
    sources: Sequence[Source], size: int, special_tokens: Sequence[str], errors: Errors
) -> tuple[list[Source], HeldOut | None]:
    """Take about `size` bytes from the beginnings of the sources, in the order of their names.

    Sources that can be read only once are left alone, and so are those whose first megabytes cannot be cut anywhere.

    Returns:
        What is left of the sources, and the sample, if there is one.

    Raises:
        CorpusError: If the sample is not UTF-8 and must be.
    """
    left = list(sources)
    specials = Specials(map(encode_utf8, special_tokens))
    taken: list[RemainingSource] = []
    for index in sorted(range(len(left)), key=lambda index: left[index].name):
        if size > 0 and left[index].version is not None:
            try:
                rest = RemainingSource(left[index], size, specials)
            except TooLongError:
                continue
            valid_utf8(rest.beginning, rest.name, 0, errors)
            left[index] = rest
            taken.append(rest)
            size -= len(rest.beginning)
    if not taken:
        return left, None
    name = f"the first {len(taken[0].beginning):,} bytes of {taken[0].name}"
    if len(taken) > 1:
        name = f"the beginnings of {len(taken):,} files, from {taken[0].name} to {taken[-1].name}"
    return left, HeldOut(name, tuple(rest.beginning for rest in taken))


class RemainingSource:
    """What remains of a source for training when its `beginning`, some `size` bytes, is held out."""

    def __init__(self, source: Source, size: int, specials: Specials):
        self.source = source
        self.beginning = _beginning(source, size, specials)
        self.name = source.name
        self.size = max(0, source.size - len(self.beginning))
        self.version: str | None = f"{source.version}, without the first {len(self.beginning)}"

    def chunks(self, specials: Specials, begin: int, longest: int = 1 << 62) -> Iterator[Chunk]:
        """As in `Source`."""
        return self.source.chunks(specials, max(begin, len(self.beginning)), longest)


def _beginning(source: Source, size: int, specials: Specials) -> bytes:
    """So many bytes, and what follows up to where a chunk can end; of what is no plain file up to where one ends."""
    if isinstance(source, TextFile):
        return source.beginning(size, specials, _LONGEST_PART)
    beginning = bytearray()
    for chunk in source.chunks(specials, 0, _LONGEST_PART):
        beginning += chunk.read().tobytes()
        if len(beginning) >= size:
            break
    return bytes(beginning)
