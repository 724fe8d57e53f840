"""Counting the words of a custom pattern, which only the `regex` package can run: on one core, in memory."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from shared.bpe.added_tokens import AddedTokenMatcher
from shared.bpe.chunks import Chunker
from shared.bpe.corpus import Source, Texts
from shared.bpe.counting import BytesProgress, CorpusCounter
from shared.bpe.errors import TokenizerError
from shared.bpe.patterns import resolve_pattern, split
from shared.bpe.vocabulary import AddedToken, encode_utf8
from shared.bpe.word_counts import WordCounts
from shared.bpe.word_layout import Partitions

# Bytes of distinct pieces that the counts of a custom pattern may hold.
MAX_DISTINCT_BYTES = 1 << 26


def counts_by_regex(
    counter: CorpusCounter,
    sources: Sequence[Source],
    special_tokens: Sequence[str],
    pattern: str,
    progress: BytesProgress | None,
) -> Partitions:
    """The words of a custom pattern, which only special tokens are known to cut."""
    texts: Iterator[str] = counter.texts(sources, progress)
    if not all(isinstance(source, Texts) for source in sources):
        texts = training_chunker(special_tokens, pattern).blocks(texts)
    table = WordCounts.from_mapping(count_pieces(texts, special_tokens=special_tokens, pattern=pattern))
    return lambda: iter([table])


def training_chunker(special_tokens: Iterable[str], pattern: str) -> Chunker:
    """Cuts a long text into blocks that `train_bpe` may take one by one: they give the same counts as the whole."""
    return Chunker(resolve_pattern(pattern), _matcher(special_tokens))


def count_pieces(texts: Iterable[str], *, special_tokens: Iterable[str], pattern: str) -> Counter[bytes]:
    """How often each piece between special tokens occurs, as UTF-8.

    Raises:
        TokenizerError: If a text holds a lone surrogate, or the distinct pieces grow beyond MAX_DISTINCT_BYTES.
    """
    matcher = _matcher(special_tokens)
    counts: Counter[str] = Counter()
    checked, distinct_bytes = 0, 0
    for text in texts:
        for _, part, token in matcher.split(text):
            if token is None:
                counts.update(split(pattern, part))
        # Pieces keep their place in a Counter, so only those that came last are new.
        new = islice(reversed(counts), len(counts) - checked)
        distinct_bytes += sum(len(encode_utf8(piece)) for piece in new)
        checked = len(counts)
        if distinct_bytes > MAX_DISTINCT_BYTES:
            raise TokenizerError(
                f"the text has {len(counts):,} distinct pieces of {distinct_bytes:,} bytes, the longest "
                f"{max(map(len, counts)):,} characters; training holds at most {MAX_DISTINCT_BYTES:,} bytes of them in "
                "memory. Train on a sample, or take out data that is not text, such as long runs of digits or base64"
            )
    return Counter({piece.encode(): count for piece, count in counts.items()})


def _matcher(special_tokens: Iterable[str]) -> AddedTokenMatcher:
    return AddedTokenMatcher(AddedToken(index, content) for index, content in enumerate(special_tokens))
