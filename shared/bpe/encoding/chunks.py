r"""Splitting a stream of text into chunks that can be encoded one by one, as if the whole text were at hand.

A *block* is a part of a text as it arrives, split anywhere. A *chunk* ends at a boundary: a place where a pretoken ends
whatever comes before and after. For the named patterns there are three kinds of boundary:

1. Before a space that follows a character that is not white space, and before a newline that follows a letter or a
   number. No alternative of these patterns matches a space after such a character, nor a newline after a letter or a
   number, so a pretoken ends there; the only look-ahead, `\s+(?!\S)`, is about white space, so the pretokens before do
   not depend on what follows; and no alternative looks back, so those after do not depend on what precedes.
2. Between a letter and a character that is not a letter, mark or white space, nor the apostrophe of a contraction: no
   alternative that matches letters matches such a character behind them.
3. After a newline that stands alone between a character that is not white space and a letter. Where punctuation takes
   the newline with it, the pretoken ends there, since no such pretoken continues with a letter; elsewhere the newline
   is a pretoken of its own, and no alternative lets a newline begin a pretoken with letters.

The edges of an added token are boundaries for every pattern. A custom pattern may look anywhere, so for it they are the
only ones. Under NFC, the above holds where an ASCII character follows, which never composes with what precedes it; and
letters and numbers must be ASCII too, since others may end in a mark then (U+0958 does), and marks are split
differently. Where a space is put before a text that begins with none, a chunk must begin with one.

With byte fallback, a boundary is before a space that follows another character, unless some piece has them side by
side. To encode a chunk, it must be known whether a space is put before it within the whole text: see `Chunker.parts`.
"""

from collections.abc import Iterable, Iterator

import regex

from shared.bpe.encoding.added_tokens import AddedTokenMatcher
from shared.bpe.errors import TooLongError
from shared.bpe.patterns.named import is_named

# Searched from the right, so that the first match is the last boundary.
_BOUNDARIES = regex.compile(
    r"(?r)(?<=\S)(?= )|(?<=[\p{L}\p{N}])(?=\n)|(?<=\p{L})(?=[^\s\p{L}\p{M}'])|(?<=\S\n)(?=\p{L})"
)
_BOUNDARIES_UNDER_NFC = regex.compile(
    r"(?rV1)(?<=\S)(?= )|(?<=[A-Za-z0-9])(?=\n)|(?<=[A-Za-z])(?=[!-~--'A-Za-z])|(?<=\S\n)(?=[A-Za-z])"
)

_BEFORE_SPACES = regex.compile(r"(?r)(?<=\S)(?= )")
_BETWEEN_PIECES = regex.compile(r"(?r)(?<=[^ \u2581])(?= )")

CHUNK_CHARACTERS = 1 << 14
_BOUNDARY, _BOUNDARY_OF_ANY_PATTERN = "such as a space", "a special token; this tokenizer may look anywhere"


class Chunker:
    """Splits one text into chunks whose encodings, joined, are that of the text.

    Args:
        pattern: The regular expression that splits text into pretokens.
        matcher: Finds the added tokens that are recognized.
        nfc: Whether chunks are normalized to NFC afterwards.
        prefix_space: Whether a space is put before chunks that begin with none.
        only_at_added: Split only at added tokens, where some of these can be found only in the normalized text.
        between_pieces: Split before spaces, as byte fallback allows, for any pattern.
        only_first: What follows an added token continues the text, as what follows text does; except for a separator.
        separator: The special token between documents.
        chunk_characters: The least length of a chunk. A text without boundaries is a single chunk.
    """

    def __init__(
        self,
        pattern: str,
        matcher: AddedTokenMatcher,
        *,
        nfc: bool = False,
        prefix_space: bool = False,
        only_at_added: bool = False,
        between_pieces: bool = False,
        only_first: bool = False,
        separator: str | None = None,
        chunk_characters: int = CHUNK_CHARACTERS,
    ):
        boundaries = _BEFORE_SPACES if prefix_space else _BOUNDARIES_UNDER_NFC if nfc else _BOUNDARIES
        self._boundaries = boundaries if is_named(pattern) and not only_at_added else None
        if between_pieces and not only_at_added:
            self._boundaries = _BETWEEN_PIECES
        self._matcher = matcher
        self._only_first, self._separator = only_first, separator
        self._chunk_characters = chunk_characters

    def chunks(self, blocks: Iterable[str], *, name: str = "the text", longest: int = 1 << 62) -> Iterator[str]:
        """Yield each chunk as soon as it is certain; none is empty.

        The arguments are those of `parts`.
        """
        return (text for text, _ in self.parts(blocks, name=name, longest=longest))

    def parts(
        self, blocks: Iterable[str], *, name: str = "the text", longest: int = 1 << 62
    ) -> Iterator[tuple[str, bool]]:
        """Yield each chunk, and whether it continues a text: begins neither the whole nor after an added token.

        Where spaces are put before the first text only, it must be the separator.

        Args:
            blocks: The text, split anywhere.
            name: The text in error messages.
            longest: The most characters that may be held in memory.

        Raises:
            TooLongError: More characters than that have no boundary among them.
        """
        gathered: list[str] = []
        length, wanted = 0, self._chunk_characters
        continues = False
        for part in self._small(blocks):
            gathered.append(part)
            length += len(part)
            if length > max(longest, 2 * self._chunk_characters):
                size = sum(len(part.encode(errors="surrogatepass")) for part in gathered)
                raise TooLongError(name, size, _BOUNDARY if self._boundaries else _BOUNDARY_OF_ANY_PATTERN)
            if length < wanted:
                continue
            text = "".join(gathered)
            end, continues_text = self.last_boundary(text)
            if end:
                yield text[:end], continues
                continues = continues_text
            gathered, length = [text[end:]], len(text) - end
            # Doubling keeps the time linear where a long text has no boundary.
            wanted = max(self._chunk_characters, 2 * length)
        if length:
            yield "".join(gathered), continues

    def last_boundary(self, text: str) -> tuple[int, bool]:
        """The last boundary in the beginning of a text, for any continuation, and whether the text continues there.

        It is 0 if there is none. See `parts`.
        """
        undecided = self._matcher.undecided_from(text)
        after_added, continues = 0, False
        for match in self._matcher.find(text):
            # White space still to come would belong to a token that strips it.
            may_grow = match.token.rstrip and match.end == len(text)
            if may_grow or match.end > undecided:
                undecided = min(undecided, match.start)
                break
            after_added, continues = match.end, self._only_first and match.token.content != self._separator
        if self._boundaries is not None:
            boundary = self._boundaries.search(text, after_added, max(after_added, undecided))
            if boundary is not None:
                return boundary.start(), continues or boundary.start() != after_added
        return after_added, continues

    def _small(self, blocks: Iterable[str]) -> Iterator[str]:
        for block in blocks:
            for start in range(0, len(block), self._chunk_characters):
                yield block[start : start + self._chunk_characters]
