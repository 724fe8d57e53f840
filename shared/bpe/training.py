"""Learning a byte-level BPE vocabulary from text."""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice, pairwise
from typing import NamedTuple

from shared.bpe.added_tokens import AddedTokenMatcher
from shared.bpe.byte_alphabet import CHARACTER_TO_BYTE, from_printable
from shared.bpe.chunks import Chunker
from shared.bpe.errors import TokenizerError
from shared.bpe.patterns import resolve_pattern, split
from shared.bpe.tokenizer import Tokenizer
from shared.bpe.vocabulary import AddedToken, Vocabulary, encode_utf8

Pair = tuple[int, int]
# Called with the merges learnt and the merges wanted.
Progress = Callable[[int, int], None]

# Bytes of distinct pieces that the counts may hold; training keeps about 25 bytes of memory for each.
MAX_DISTINCT_BYTES = 1 << 26

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class TrainingResult:
    """A tokenizer and how far its training came.

    Attributes:
        requested_size: Tokens asked for.
        reached_size: Tokens learnt, fewer where the text has too few pairs.
        bytes_per_token: Of the text itself, special tokens left out.
    """

    tokenizer: Tokenizer
    requested_size: int
    reached_size: int
    bytes_per_token: float


class LearnedMerges(NamedTuple):
    """Tokens by id, merges by rank, and the length of the counted text in bytes and in tokens."""

    tokens: list[bytes]
    merges: list[Pair]
    num_bytes: int
    num_tokens: int


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    special_tokens: Sequence[str] = (),
    pattern: str = "gpt2",
    progress: Progress | None = None,
) -> TrainingResult:
    r"""Learn a vocabulary: the most frequent pair of neighbours becomes a token, again and again.

    Of equally frequent pairs, the lexicographically greatest pair of byte strings goes first, so that the result
    depends on the text alone. Ids are the 256 bytes, the merges in order, then the special tokens.

    Args:
        texts: Parts of the corpus; no piece crosses from one to the next.
        vocab_size: Tokens wanted, the bytes and special tokens included.
        special_tokens: Never cut, never counted, in order of their ids. None may be spelt like a single byte; none can
            be learnt as a merge too, since no text that is counted holds it.
        pattern: The name of a pattern or a regular expression.
        progress: Called after each merge with the number learnt and the number wanted.

    Raises:
        TokenizerError: If the settings cannot be met; raised before any text is read.

    >>> result = train_bpe(["low low lower"], 300, special_tokens=["<|endoftext|>"])
    >>> result.reached_size, result.tokenizer.encode("lower")
    (262, [257, 259])
    """
    pattern = resolve_pattern(pattern)
    num_merges = _num_merges(vocab_size, special_tokens)
    counts = count_pieces(texts, special_tokens=special_tokens, pattern=pattern)
    learned = learn_merges(counts, num_merges, reserved=_spellings(special_tokens), progress=progress)
    added = tuple(AddedToken(len(learned.tokens) + index, content) for index, content in enumerate(special_tokens))
    vocabulary = Vocabulary(
        tokens=dict(enumerate(learned.tokens)),
        merges=tuple(learned.merges),
        added=added,
        pattern=pattern,
        eos=END_OF_TEXT if END_OF_TEXT in special_tokens else None,
    )
    tokenizer = Tokenizer(vocabulary)
    return TrainingResult(
        tokenizer,
        requested_size=vocab_size,
        reached_size=len(tokenizer),
        bytes_per_token=learned.num_bytes / max(1, learned.num_tokens),
    )


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


def learn_merges(
    counts: Mapping[bytes, int],
    num_merges: int,
    *,
    reserved: frozenset[bytes] = frozenset(),
    progress: Progress | None = None,
) -> LearnedMerges:
    """The merges that counted pieces call for.

    Args:
        counts: How often each piece occurs.
        num_merges: Tokens wanted beyond the 256 bytes.
        reserved: Byte strings that no merge may give.
        progress: As in `train_bpe`.

    Returns:
        As many as were wanted, or all that there are pairs for.
    """
    corpus = _Corpus(counts)
    tokens = [bytes([byte]) for byte in range(256)]
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    # Smallest first: the highest count, then the greatest bytes.
    order = [_descending(token) for token in tokens]
    heap = [(-count, order[a], order[b], (a, b)) for (a, b), count in corpus.pair_counts.items()]
    heapify(heap)
    merges: list[Pair] = []
    while heap and len(tokens) < 256 + num_merges:
        negative_count, *_, pair = heappop(heap)
        count = corpus.pair_counts.get(pair, 0)
        if count != -negative_count:
            # Counts that fell since the entry was made are corrected here, those that grew have a newer entry.
            if 0 < count < -negative_count:
                heappush(heap, (-count, order[pair[0]], order[pair[1]], pair))
            continue
        token = tokens[pair[0]] + tokens[pair[1]]
        if token in reserved:
            raise TokenizerError(
                f"the text teaches the token {token!r}, which is also a special token; rename that one"
            )
        merged = ids.setdefault(token, len(tokens))
        if merged == len(tokens):
            tokens.append(token)
            order.append(_descending(token))
        merges.append(pair)
        for a, b in corpus.merge(pair, merged, len(tokens[pair[0]]), len(token)):
            heappush(heap, (-corpus.pair_counts[a, b], order[a], order[b], (a, b)))
        if progress is not None:
            progress(len(tokens) - 256, num_merges)
    num_bytes = sum(len(piece) * count for piece, count in counts.items())
    return LearnedMerges(tokens, merges, num_bytes, num_tokens=num_bytes - corpus.num_merged)


class _Corpus:
    """The distinct pieces side by side, as tokens that grow, with the count and the places of every pair.

    A token lies on the bytes that it stands for: `_ids` holds its id at its first byte, and `_starts` the place of that
    first byte at its last. So the neighbours of a token are found without links, and a merge touches only the places
    where it happens, however long the pieces are.
    """

    _NOTHING = -1  # in _ids: a gap between pieces, or the inside of a token

    def __init__(self, counts: Mapping[bytes, int]):
        self.pair_counts: dict[Pair, int] = {}
        self.num_merged = 0
        self._ids = array("i", [self._NOTHING])
        self._counts = list(counts.values())
        self._offsets: list[int] = []
        # Places may be out of date: `merge` looks whether the pair is still there.
        self._places: dict[Pair, array[int]] = {}
        for piece, count in counts.items():
            self._offsets.append(len(self._ids))
            for place, pair in enumerate(pairwise(piece), start=len(self._ids)):
                self._add(pair, place, count)
            self._ids.extend(piece)
            self._ids.append(self._NOTHING)
        self._starts = array("i", range(len(self._ids)))

    def merge(self, pair: Pair, merged: int, left_length: int, length: int) -> set[Pair]:
        """Replace a pair everywhere, from the left; returns the pairs whose count grew."""
        ids, starts, counts = self._ids, self._starts, self.pair_counts
        left, right = pair
        grown: set[Pair] = set()
        for place in sorted(self._places.pop(pair)):
            middle = place + left_length
            if ids[place] != left or ids[middle] != right:
                continue
            count = self._counts[bisect_right(self._offsets, place) - 1]
            before, after = starts[place - 1], place + length
            if ids[before] != self._NOTHING:
                counts[ids[before], left] -= count
                self._add((ids[before], merged), before, count)
                grown.add((ids[before], merged))
            if ids[after] != self._NOTHING:
                counts[right, ids[after]] -= count
                self._add((merged, ids[after]), place, count)
                grown.add((merged, ids[after]))
            ids[place], ids[middle] = merged, self._NOTHING
            starts[after - 1] = place
            self.num_merged += count
        del counts[pair]
        return {grown_pair for grown_pair in grown if counts[grown_pair] > 0}

    def _add(self, pair: Pair, place: int, count: int) -> None:
        self.pair_counts[pair] = self.pair_counts.get(pair, 0) + count
        self._places.setdefault(pair, array("i")).append(place)


def _matcher(special_tokens: Iterable[str]) -> AddedTokenMatcher:
    return AddedTokenMatcher(AddedToken(index, content) for index, content in enumerate(special_tokens))


def _descending(token: bytes) -> tuple[int, ...]:
    """A key under which the lexicographically greatest byte string is the smallest."""
    return (*(255 - byte for byte in token), 256)


def _spellings(special_tokens: Iterable[str]) -> frozenset[bytes]:
    """The byte strings of ordinary tokens that would be spelt like a special token, here or in tokenizer.json."""
    printable = [from_printable(content) for content in special_tokens if CHARACTER_TO_BYTE.keys() >= set(content)]
    return frozenset([*map(encode_utf8, special_tokens), *printable])


def _num_merges(vocab_size: int, special_tokens: Sequence[str]) -> int:
    if not isinstance(vocab_size, int) or isinstance(vocab_size, bool):
        raise TokenizerError(f"the vocabulary size must be a whole number, not {vocab_size!r}")
    if isinstance(special_tokens, str):
        raise TokenizerError(f"special_tokens must be a list of strings, not the one string {special_tokens!r}")
    for index, content in enumerate(special_tokens):
        if not content:
            raise TokenizerError(f"special token {index} is empty")
        if content in special_tokens[:index]:
            raise TokenizerError(f"the special token {content!r} is given twice")
    for spelling in _spellings(special_tokens):
        if len(spelling) == 1:
            raise TokenizerError(
                f"the special token {spelling.decode('latin-1')!r} is spelt like the token of a byte; take a longer one"
            )
    minimum = 256 + len(special_tokens)
    if vocab_size < minimum:
        raise TokenizerError(
            f"the vocabulary size {vocab_size} is below {minimum}: 256 bytes and {len(special_tokens)} special tokens"
        )
    return vocab_size - minimum
