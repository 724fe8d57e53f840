r"""Cutting a stream of text into blocks that may be handled one by one, as if the whole text were at hand.

Blocks end where a piece ends whatever comes before and after. For the named patterns three kinds of place are such:

1. Before a space that follows a character that is not white space, and before a newline that follows a letter or a
   number. No alternative of these patterns matches a space after such a character, nor a newline after a letter or a
   number, so a piece ends there; the only look-ahead, `\s+(?!\S)`, is about white space, so the pieces before do not
   depend on what follows; and no alternative looks back, so those after do not depend on what precedes.
2. Between a letter and a character that is no letter, mark or white space, nor the apostrophe of a contraction: nothing
   that matches letters matches such a character behind them.
3. After a newline that stands alone between a character that is not white space and a letter. Where punctuation takes
   the newline with it the piece ends there, since a letter continues no such piece; elsewhere the newline is a piece
   of its own, and no alternative lets a newline begin a piece with letters.

The edges of an added token are such places for every pattern. A custom pattern may look anywhere, so for it they are
the only ones. Under NFC, these hold where an ASCII character follows, which never composes with what precedes it; and
letters and numbers must be ASCII too, since others may end in a mark then (U+0958 does), and marks are cut differently.
Where a space is put before a text that begins with none, a block must begin with one.
"""

from collections.abc import Iterable, Iterator

import regex

from shared.bpe.encoding.added_tokens import AddedTokenMatcher
from shared.bpe.errors import TooLongError
from shared.bpe.patterns.named import is_named

# Searched from the right, so that the first match is the last place.
_PLACES = regex.compile(r"(?r)(?<=\S)(?= )|(?<=[\p{L}\p{N}])(?=\n)|(?<=\p{L})(?=[^\s\p{L}\p{M}'])|(?<=\S\n)(?=\p{L})")
_PLACES_UNDER_NFC = regex.compile(
    r"(?rV1)(?<=\S)(?= )|(?<=[A-Za-z0-9])(?=\n)|(?<=[A-Za-z])(?=[!-~--'A-Za-z])|(?<=\S\n)(?=[A-Za-z])"
)

_BEFORE_SPACES = regex.compile(r"(?r)(?<=\S)(?= )")

# Characters gathered before looking for a place to cut.
BLOCK_LENGTH = 1 << 14
_PLACE, _PLACE_ANYWHERE = "such as a blank", "a special token; this pattern may look anywhere"


class Chunker:
    """Regroups chunks of one text into blocks whose encodings, joined, are that of the text.

    Args:
        pattern: The regular expression that cuts text into pieces.
        matcher: The added tokens that count.
        nfc: Whether blocks are brought to NFC afterwards.
        prefix_space: Whether a space is put before blocks that begin with none.
        only_at_added: Cut nowhere but at added tokens: the others are known only in the normalized text.
        block_length: Characters gathered before a cut. A text without a place to cut is gathered whole.
    """

    def __init__(
        self,
        pattern: str,
        matcher: AddedTokenMatcher,
        *,
        nfc: bool = False,
        prefix_space: bool = False,
        only_at_added: bool = False,
        block_length: int = BLOCK_LENGTH,
    ):
        places = _BEFORE_SPACES if prefix_space else _PLACES_UNDER_NFC if nfc else _PLACES
        self._places = places if is_named(pattern) and not only_at_added else None
        self._matcher = matcher
        self._block_length = block_length

    def blocks(self, chunks: Iterable[str], *, name: str = "the text", longest: int = 1 << 62) -> Iterator[str]:
        """Yield blocks as soon as they are certain; none is empty.

        Args:
            chunks: The text.
            name: What errors call it.
            longest: Characters that may be gathered.

        Raises:
            TooLongError: If there is no place to cut in more than these.
        """
        gathered: list[str] = []
        length, wanted = 0, self._block_length
        for part in self._parts(chunks):
            gathered.append(part)
            length += len(part)
            if length > max(longest, 2 * self._block_length):
                size = sum(len(part.encode(errors="surrogatepass")) for part in gathered)
                raise TooLongError(name, size, _PLACE if self._places else _PLACE_ANYWHERE)
            if length < wanted:
                continue
            text = "".join(gathered)
            cut = self.last_cut(text)
            if cut:
                yield text[:cut]
            gathered, length = [text[cut:]], len(text) - cut
            # Doubling keeps the time linear where a long text has no place to cut.
            wanted = max(self._block_length, 2 * length)
        if length:
            yield "".join(gathered)

    def last_cut(self, text: str) -> int:
        """The last place in the beginning of a text where it may be cut, whatever follows; 0 if there is none."""
        undecided = self._matcher.undecided_from(text)
        after_added = 0
        for match in self._matcher.find(text):
            # White space still to come would belong to a token that strips it.
            may_grow = match.token.rstrip and match.end == len(text)
            if may_grow or match.end > undecided:
                undecided = min(undecided, match.start)
                break
            after_added = match.end
        if self._places is not None:
            place = self._places.search(text, after_added, max(after_added, undecided))
            if place is not None:
                return place.start()
        return after_added

    def _parts(self, chunks: Iterable[str]) -> Iterator[str]:
        for chunk in chunks:
            for start in range(0, len(chunk), self._block_length):
                yield chunk[start : start + self._block_length]
