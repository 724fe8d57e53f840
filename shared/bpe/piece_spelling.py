"""How SentencePiece spells tokens: a space as U+2581, and the token of a byte as `<0x0A>`."""

from shared.bpe.errors import TokenizerError

SPACE_MARK = "\u2581"
BYTE_PIECES = {f"<0x{byte:02X}>": byte for byte in range(256)}
"""The bytes by the spelling of their tokens, in order."""


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
        raise TokenizerError(f"{piece!r} holds half of a UTF-16 pair, which is not a character") from None
