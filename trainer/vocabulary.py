"""Text files to a tokenizer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.bpe import Tokenizer, train_bpe, training_chunker
from trainer.corpus import read_chunks, total_bytes
from trainer.errors import TrainerError


@dataclass(frozen=True)
class VocabularyReport:
    """What was learnt.

    Attributes:
        tokenizer: The tokenizer that was saved.
        requested_size: Tokens asked for.
        reached_size: Tokens learnt, fewer where the text has too few pairs.
        longest_token: The bytes of the longest ordinary token.
        bytes_per_token: Bytes of the text for each token that it becomes.
        bytes_read: Of the text files.
    """

    tokenizer: Tokenizer
    requested_size: int
    reached_size: int
    longest_token: bytes
    bytes_per_token: float
    bytes_read: int


def learn_vocabulary(
    paths: Sequence[Path],
    output: Path,
    *,
    vocab_size: int,
    special_tokens: Sequence[str] = ("<|endoftext|>",),
    pattern: str = "gpt2",
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
    merge_progress: Callable[[int, int], None] | None = None,
) -> VocabularyReport:
    """Learn a vocabulary from text files and save it as a tokenizer folder.

    Args:
        paths: UTF-8 text files; their order does not matter. With a custom pattern they are read whole.
        output: The folder for tokenizer.json and tokenizer_config.json; made if missing.
        vocab_size: Tokens wanted, the 256 bytes and the special tokens included.
        special_tokens: Never cut, never counted, in order of their ids.
        pattern: The name of a pattern or a regular expression.
        overwrite: Replace a tokenizer that exists.
        progress: Called with the bytes read so far.
        merge_progress: Called with the merges learnt and the merges wanted.

    Raises:
        UsageError: If no files are given or one is a folder.
        CorpusError: If a file cannot be read as UTF-8.
        TokenizerError: If the settings cannot be met; raised before any file is read.
        TrainerError: If the output is in the way, or the files hold no text.
    """
    total_bytes(paths)
    if (output / "tokenizer.json").exists() and not overwrite:
        raise TrainerError(f"{output / 'tokenizer.json'} exists; choose another folder, or allow it to be overwritten")
    texts = _Texts(paths, special_tokens, pattern, progress or (lambda _: None))
    result = train_bpe(texts, vocab_size, special_tokens=special_tokens, pattern=pattern, progress=merge_progress)
    if texts.is_blank:
        raise TrainerError("the files hold nothing but white space: there is no vocabulary to learn")
    result.tokenizer.save(output)
    return VocabularyReport(
        tokenizer=result.tokenizer,
        requested_size=result.requested_size,
        reached_size=result.reached_size,
        longest_token=max(result.tokenizer.vocabulary.tokens.values(), key=len),
        bytes_per_token=result.bytes_per_token,
        bytes_read=texts.bytes_read,
    )


class _Texts:
    """The files in blocks of bounded size, which are counted as the whole files would be."""

    def __init__(
        self, paths: Sequence[Path], special_tokens: Sequence[str], pattern: str, progress: Callable[[int], None]
    ):
        self.bytes_read = 0
        self.is_blank = True
        self._paths = paths
        self._special_tokens = special_tokens
        self._pattern = pattern
        self._progress = progress

    def __iter__(self) -> Iterator[str]:
        chunker = training_chunker(self._special_tokens, self._pattern)
        for path in self._paths:
            for block in chunker.blocks(read_chunks(path, self._add)):
                self.is_blank = self.is_blank and not block.strip()
                yield block

    def _add(self, data: bytes) -> None:
        self.bytes_read += len(data)
        self._progress(self.bytes_read)
