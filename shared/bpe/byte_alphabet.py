"""GPT-2's byte alphabet: one printable character for every byte, so that JSON and text files can hold any token.

The table is that of `bytes_to_unicode` in OpenAI's GPT-2 release (https://github.com/openai/gpt-2, src/encoder.py): the
188 printable Latin-1 characters stand for themselves, the other 68 bytes map to code points from U+0100 on.
"""

import codecs

from shared.bpe.errors import TokenizerError

_PRINTABLE = frozenset([*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)])
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]

BYTE_TO_CHARACTER = tuple(chr(b) if b in _PRINTABLE else chr(0x100 + _OTHERS.index(b)) for b in range(256))
CHARACTER_TO_BYTE = {character: byte for byte, character in enumerate(BYTE_TO_CHARACTER)}
_DECODING = "".join(BYTE_TO_CHARACTER)
_ENCODING = codecs.charmap_build(_DECODING)


def to_printable(token: bytes) -> str:
    """The printable form of a token, one character for each byte.

    >>> to_printable(b" t")
    'Ġt'
    """
    return codecs.charmap_decode(token, "strict", _DECODING)[0]


def from_printable(text: str) -> bytes:
    """The bytes of a printable form.

    Raises:
        TokenizerError: A character is not in the alphabet.
    """
    try:
        return codecs.charmap_encode(text, "strict", _ENCODING)[0]
    except UnicodeEncodeError as error:
        raise TokenizerError(f"{text!r} is not in the byte-level alphabet: it holds {text[error.start]!r}") from None
