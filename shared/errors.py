"""Errors in words, for people."""


def describe(error: Exception) -> str:
    """An error as a sentence: those that are written for people as they are, others with their type."""
    if isinstance(error, ValueError | OSError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}".rstrip(": ")


def printable(text: str) -> str:
    """A text with escapes for what a terminal does not print, so that no name of a file can move its cursor.

    Lines stay lines, but those after the first are indented: none of them looks like a message of its own.
    """
    if text.isprintable():
        return text
    first, *others = ["".join(map(_printable, line)) for line in text.split("\n")]
    return "\n".join([first, *(f"  {line}" if line and line[0] != " " else line for line in others)])


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
