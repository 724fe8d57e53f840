r"""The bytes of a token as text for people: nothing in it controls the terminal, and no byte is lost."""

_ESCAPED_BYTES = range(0xDC80, 0xDD00)  # where Python's surrogateescape puts bytes that are not UTF-8


def token_text(data: bytes) -> str:
    r"""Bytes as printable text on one line, an unambiguous encoding.

    Bytes that are not UTF-8, such as half of a character, are shown as `\xNN`; control and other unprintable characters
    as Python escapes them, beyond ASCII always by their code point (`\u0085`); a backslash is doubled.

    >>> token_text(" café\n".encode()), token_text(b"\xc3"), token_text("\x85".encode())
    (' café\\n', '\\xc3', '\\u0085')
    """
    return "".join(map(_escaped, data.decode(errors="surrogateescape")))


def _escaped(character: str) -> str:
    code = ord(character)
    if code in _ESCAPED_BYTES:
        return f"\\x{code - 0xDC00:02x}"
    if character.isprintable() and character != "\\":
        return character
    if code < 0x80:
        return character.encode("unicode_escape").decode()
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
