"""What vocabularies contain and share, without any text."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from shared.bpe import Tokenizer


@dataclass(frozen=True)
class VocabularyContent:
    """The learned part of a vocabulary, by bytes, so that it compares with others whatever the ids are.

    Attributes:
        tokenizer: The tokenizer.
    """

    tokenizer: Tokenizer

    @cached_property
    def tokens(self) -> frozenset[bytes]:
        """Ordinary tokens of two or more bytes: every byte-level vocabulary has the single ones."""
        return frozenset(token for token in self.tokenizer.vocabulary.tokens.values() if len(token) > 1)

    @cached_property
    def merges(self) -> frozenset[tuple[bytes, bytes]]:
        """Pairs of tokens, whatever their rank."""
        tokens = self.tokenizer.vocabulary.tokens
        return frozenset((tokens[left], tokens[right]) for left, right in self.tokenizer.vocabulary.merges)

    def longest(self, count: int) -> list[tuple[int, bytes]]:
        """The ids and bytes of the longest ordinary tokens, longest first; of equally long ones the lowest id."""
        tokens = self.tokenizer.vocabulary.tokens.items()
        return sorted(tokens, key=lambda item: (-len(item[1]), item[0]))[:count]


@dataclass(frozen=True)
class Shared:
    """What two vocabularies have in common, of their tokens or of their merges.

    Attributes:
        first: The name of the first tokenizer.
        second: The name of the second.
        kind: `tokens` or `merges`.
        count: How many both have.
        of_first: That as a fraction of those of the first; None if it has none.
        of_second: The same of the second.
    """

    first: str
    second: str
    kind: str
    count: int
    of_first: float | None
    of_second: float | None


def shared_content(contents: Mapping[str, VocabularyContent]) -> list[Shared]:
    """What every two of the vocabularies share, in the order of their names here."""
    rows = []
    for first, second in combinations(contents, 2):
        for kind in ("tokens", "merges"):
            one, other = (getattr(contents[name], kind) for name in (first, second))
            count = len(one & other)
            shares = (count / len(each) if each else None for each in (one, other))
            rows.append(Shared(first, second, kind, count, *shares))
    return rows
