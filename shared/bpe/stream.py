"""Text from ids as they come."""

import codecs

from shared.bpe.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes ids one by one; what `feed` and `finish` return, joined, is what `decode` gives for all ids.

    Text is returned as soon as it is certain: bytes that may still become a character are held back, at most three.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True):
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, id: int) -> str:  # noqa: A002  # the name that the whole interface uses
        """The text that an id makes certain, often empty.

        Raises:
            TokenizerError: If the id is no token's.
        """
        return self._decoder.decode(self._tokenizer.decode_bytes([id], skip_special_tokens=self._skip_special_tokens))

    def finish(self) -> str:
        """The rest: U+FFFD if the last character never became complete."""
        return self._decoder.decode(b"", final=True)
