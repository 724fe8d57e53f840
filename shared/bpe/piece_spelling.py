"""How SentencePiece spells tokens: a space as U+2581, and the token of a byte as `<0x0A>`."""

import re

from shared.bpe.errors import TokenizerError

SPACE_MARK = "\u2581"
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def to_piece(token: bytes) -> str:
    """The spelling of a token that is text.

    >>> to_piece(b" the")
    '▁the'
    """
    return token.decode().replace(" ", SPACE_MARK)


def from_piece(piece: str) -> bytes:
    """The bytes of a piece, with spaces for U+2581.

    Raises:
        TokenizerError: It holds a lone surrogate.
    """
    try:
        return piece.replace(SPACE_MARK, " ").encode()
    except UnicodeEncodeError:
        raise TokenizerError(f"{piece!r} holds half of a UTF-16 pair, which is no character") from None
