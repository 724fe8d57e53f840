"""Readable error messages."""

import reprlib

_NO_THREAD = "no thread can be started: the memory, or the number of processes allowed, is too small"
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
_SHORT.maxlevel = 3


def describe(error: Exception) -> str:
    """An error as a sentence: the message of a ValueError or OSError, others with their type."""
    if isinstance(error, ValueError | OSError) and str(error):
        return str(error)
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}".rstrip(": ")
    if is_no_thread(error):
        return _NO_THREAD
    return f"{type(error).__name__}: {error}".rstrip(": ")


def is_no_thread(error: Exception) -> bool:
    """Whether this is the error that Python raises if no thread can be started; it has no class of its own."""
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"


def short_repr(value: object) -> str:
    """A value from a file for a message: its repr, shortened if it is long or deep."""
    return _SHORT.repr(value)


def display_name(value: object) -> str:
    """A name from a file for a message: unchanged if it is short and printable, else as `short_repr`."""
    return value if isinstance(value, str) and value.isprintable() and len(value) <= 100 else short_repr(value)


def escape_unprintable(text: str) -> str:
    """A text with unprintable characters escaped, so that no file name can control the terminal.

    Newlines stay, but lines after the first are indented: none of them looks like a message of its own.
    """
    if text.isprintable():
        return text
    first, *others = ["".join(map(_printable, line)) for line in text.split("\n")]
    return "\n".join([first, *(f"  {line}" if line and line[0] != " " else line for line in others)])


def how_to_install(extra: str, constraints: str = "constraints.txt") -> str:
    """The command that installs an extra, for a message: in the checkout, as ownlm is in no package index."""
    return f"pip install -c {constraints} -e '.[{extra}]' in the checkout"


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
