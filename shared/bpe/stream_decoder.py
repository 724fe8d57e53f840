"""Text from a stream of ids."""

import codecs
from collections.abc import Sequence

from shared.bpe.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes ids one by one; the concatenated results of `feed` and `finish` equal `decode` of all ids.

    Text is returned as soon as it is certain: up to three bytes of an incomplete character are held back.

    Args:
        tokenizer: The tokenizer.
        skip_special_tokens: As in `decode`.
        continues: Whether the ids follow others with text. What is returned is then what they add to it: no space is
            omitted at its beginning.

    Attributes:
        start: The offset, in characters, at which the text of the latest id begins; inside a character, the offset of
            that character. An id without bytes begins where the one before it does, or at the end of the text so far.

    >>> decoder = StreamDecoder(tokenizer)
    >>> [decoder.feed(id) for id in tokenizer.encode("é!")], decoder.finish()
    (['', 'é', '!'], '')
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, *, continues: bool = False):
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._omits_space = tokenizer.vocabulary.strips_space and not continues
        self._is_whole = True  # no bytes of an incomplete character are held back
        self._length = 0  # of the text that was returned
        self.start = 0

    def feed(self, id: int) -> str:  # noqa: A002  # the name that the whole interface uses
        """The text that becomes certain with this id; often empty.

        Raises:
            TokenizerError: The id is not in the vocabulary.
        """
        data = self._added(self._tokenizer.token_bytes(id, skip_special_tokens=self._skip_special_tokens))
        if self._is_whole and data.isascii():  # faster than Python's decoder, which is Python code
            text = data.decode("ascii")
            self.start = self._length if data else max(self.start, self._length)
        else:
            held = self._decoder.getstate()[0]
            self.start = self._length + _num_cut_off(held, data[:1]) if data else max(self.start, self._length)
            text = self._decode(data)
        self._length += len(text)
        return text

    def skip(self, ids: Sequence[int]) -> str:
        """Take the ids before the first one that is fed, and return their text; `start` counts from its end.

        Raises:
            TokenizerError: An id is not in the vocabulary.
        """
        data = self._tokenizer.decode_bytes(ids, skip_special_tokens=self._skip_special_tokens, continues=True)
        return self._decode(self._added(data))

    def finish(self) -> str:
        """The rest: U+FFFD if the last character is incomplete."""
        return self._decoder.decode(b"", final=True)

    def _decode(self, data: bytes) -> str:
        text = self._decoder.decode(data)
        self._is_whole = not self._decoder.getstate()[0]
        return text

    def _added(self, data: bytes) -> bytes:
        """What the bytes of the next ids add to the text."""
        if self._omits_space and data:
            self._omits_space = False
            return data.removeprefix(b" ")
        return data


def _num_cut_off(held: bytes, following: bytes) -> int:
    """How many U+FFFD the held bytes become if the following byte does not continue them.

    One, except for two bytes of a surrogate: Python's decoder holds them back, and replaces each with U+FFFD.
    """
    if not held:
        return 0
    try:
        (held + following).decode()
    except UnicodeDecodeError as error:
        return 0 if error.reason == "unexpected end of data" else len(held.decode(errors="replace"))
    return 0
