"""Text from ids as they come."""

import codecs

from shared.bpe.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes ids one by one; what `feed` and `finish` return, joined, is what `decode` gives for all ids.

    Text is returned as soon as it is certain: bytes that may still become a character are held back, at most three.

    Attributes:
        start: Where the latest id's text begins, in characters of the text of all ids; within a character, where that
            character begins. An id without bytes begins where the one before it does, or where the text ends so far.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True):
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._length = 0  # of the text that was returned
        self.start = 0

    def feed(self, id: int) -> str:  # noqa: A002  # the name that the whole interface uses
        """The text that an id makes certain, often empty.

        Raises:
            TokenizerError: If the id is no token's.
        """
        data = self._tokenizer.decode_bytes([id], skip_special_tokens=self._skip_special_tokens)
        held = self._decoder.getstate()[0]
        self.start = self._length + _num_cut_off(held, data[:1]) if data else max(self.start, self._length)
        text = self._decoder.decode(data)
        self._length += len(text)
        return text

    def finish(self) -> str:
        """The rest: U+FFFD if the last character never became complete."""
        return self._decoder.decode(b"", final=True)


def _num_cut_off(held: bytes, following: bytes) -> int:
    """How many U+FFFD the first bytes of a character become, where the byte that follows is no part of it.

    One, but for two bytes of a surrogate: Python's decoder holds them back, and makes a U+FFFD of each.
    """
    if not held:
        return 0
    try:
        (held + following).decode()
    except UnicodeDecodeError as error:
        return 0 if error.reason == "unexpected end of data" else len(held.decode(errors="replace"))
    return 0
